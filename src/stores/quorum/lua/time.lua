-- One reading for the whole script. The expiry of keys stands still while a script runs, and TIME does not.
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]

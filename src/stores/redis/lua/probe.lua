-- Changes nothing, and is refused wherever locks would be: a replica refuses every command that writes.
redis.call('TIME')
return redis.call('DEL', KEYS[1])

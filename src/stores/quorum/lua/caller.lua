-- Every key begins with the prefix, and that with the prefix of the client, if it has one.
local prefix = string.match(KEYS[1], '^.-holdfast%-quorum:')
-- The time on the node's clock in µs, as a number and as text. One reading for the whole script: TIME goes on
-- while it runs.
local micros, moment
local function readTime()
  if micros then return end
  local time = redis.call('TIME')
  micros = time[1] * 1000000 + time[2]
  moment = time[1] .. string.sub('00000' .. time[2], -6)
end

-- With full memory the server refuses a script whose first write may take memory; this one takes none. No name
-- has this key.
local function writeNothing() redis.call('DEL', prefix .. 'none') end

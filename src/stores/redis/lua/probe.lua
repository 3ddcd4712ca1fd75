-- Changes nothing. A server that would refuse locks refuses it too: DEL counts as a write.
redis.call('TIME')
return redis.call('DEL', KEYS[1])

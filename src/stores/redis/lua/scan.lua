-- A page of the keys that match, as SCAN replies. ARGV: cursor, pattern, count.
return redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])

-- Renews grants and tickets. KEYS as in free-names.lua; ARGV, from the second on: grantId, seq, ttl of each.

local function renew(key, id, seq, ttl)
  local state = openAndAdvance(key, true)
  local mine = findClaim(state, id)
  if not mine or mine.expires <= now then return lostReply(state, id) end
  extend(state, mine, seq, ttl)
  if mine.token > 0 then return { kind = 'granted', grant = grantReply(mine) } end
  return queuedReply(state, mine)
end

local replies = {}
for i = 1, #KEYS / 3 do
  local arg = 3 * i - 1
  local id, seq, ttl = ARGV[arg], tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local ok, reply = pcall(renew, 3 * i - 2, id, seq, ttl)
  replies[i] = ok and reply or { kind = 'unknown', cause = messageOf(reply) }
end
saveAndNotify()
return cjson.encode(replies)

-- Takes a name from its holders. ARGV: the caller, by whom, why.
local by, why = ARGV[2], ARGV[3]
local state = openAndAdvance(1)
local before, revoked, others = {}, {}, {}
for _, holder in ipairs(state.holders) do
  -- A waiter that this very script has granted the name keeps it: the caller meant the holders before it.
  if holder.ended ~= 'revoked' and not grantedNow[holder] then
    before[#before + 1] = shownClaim(state, holder)
    -- The record is kept beyond the lease: the holder's renewal learns the reason, and people see it.
    holder.ttl = math.max(holder.expires - now, REVOKED_KEPT_MS)
    holder.expires = now + holder.ttl
    holder.ended, holder.by, holder.why, holder.since, holder.closed = 'revoked', by, why, now, 0
    keepUntil(state, holder.expires)
    state.changed = true
  end
  local list = holder.ended == 'revoked' and revoked or others
  list[#list + 1] = holder
end
table.sort(revoked, function (a, b)
  if a.since ~= b.since then return a.since < b.since end
  return a.token < b.token
end)
-- Claims that this script has revoked stay, however many: their holders have yet to learn of it.
while #revoked > REVOKED_KEPT_MANY and revoked[1].since < now do table.remove(revoked, 1) end
for _, holder in ipairs(others) do revoked[#revoked + 1] = holder end
state.holders = revoked
dropExpiredHolders(state)
advance(state)
saveAndNotify()
return cjson.encode({ nowMs = 0, claims = before })

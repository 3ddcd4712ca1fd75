-- The tables that become the JSON of a reply.

-- The reply carries the grant, so no message is sent for it, and it is not taken back.
local function grantReply(claim)
  claim.isInReply = true
  return {
    token = toText(claim.token), floor = toText(claim.floor), ttlMs = claim.ttl, seq = claim.seq,
    handedOver = false,
  }
end

local function positionOf(state, place)
  local label, ahead
  for _, holder in ipairs(state.holders) do
    if holder.ended ~= 'revoked' then label = label or holder.holder end
  end
  if state.waiting then ahead = math.max(0, place - state.first) end
  return { ahead = ahead or 0, freeInMs = earliestEnd(state), holder = label }
end

local function queuedReply(state, ticket)
  -- The waiter learns from this reply what it would learn by looking.
  if state.informed then state.informed[ticket.id] = true end
  return { kind = 'queued', position = positionOf(state, ticket.place) }
end

local function lostReply(state, id)
  local revoked, isTaken
  for _, holder in ipairs(state.holders) do
    if holder.id == id and holder.ended == 'revoked' then revoked = holder end
    if holder.id ~= id and holder.ended == 'no' then isTaken = true end
  end
  if revoked then
    return { kind = 'lost', reason = 'revoked', why = 'by ' .. revoked.by .. ': ' .. revoked.why }
  end
  return { kind = 'lost', reason = isTaken and 'superseded' or 'expired' }
end

-- A claim as ShownClaim in shared/name-info.ts has it. The times count from now: JSON of Lua has 14 digits.
local function shownClaim(state, claim)
  return {
    permits = claim.permits, limit = state.limit, holder = claim.holder, sinceMs = claim.since - now,
    expiresAtMs = claim.expires - now, closedUntilMs = claim.closed > 0 and claim.closed - now or 0,
    atLeastMs = claim.atLeast, token = toText(claim.token), ended = claim.ended, endedBy = claim.by,
    endedWhy = claim.why,
  }
end

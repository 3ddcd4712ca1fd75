-- How a name is stored. Its state is packed by cmsgpack in one of two forms:
--   FORMAT, grantId, atLeast, token, grant time in µs, ttl, details [, expires, closed]
--       for one holder without waiters: by far the most usual, and the only form that free-names.lua writes
--   FORMAT, false, { limit, holders, first, next, tickets, longest, ends, kept, room }
-- Times are in ms on the server's clock. Numbers are doubles: tokens stay below 2^53 and leave as text.

local function toText(number) return string.format('%.0f', number) end

-- Redis 7 raises tables, older versions text.
local function messageOf(raised) return type(raised) == 'table' and raised.err or tostring(raised) end

local function packClaim(claim)
  return cmsgpack.pack(
    claim.id, claim.permits, claim.atLeast, claim.holder, claim.since, claim.seq, claim.ttl,
    claim.expires, claim.closed, claim.token, claim.floor, claim.channel, claim.place, claim.ended,
    claim.by, claim.why
  )
end

local function unpackClaim(packed)
  local id, permits, atLeast, holder, since, seq, ttl, expires, closed, token, floor, channel, place,
    ended, by, why = cmsgpack.unpack(packed)
  return {
    id = id, permits = permits, atLeast = atLeast, holder = holder, since = since, seq = seq, ttl = ttl,
    expires = expires, closed = closed, token = token, floor = floor, channel = channel, place = place,
    ended = ended, by = by, why = why,
  }
end

local function parseDetails(details)
  local seq, permits, limit, holder = string.match(details, '^(%d+) (%d+) (%d+) (.*)$')
  return tonumber(seq), tonumber(permits), tonumber(limit), holder
end

local function packSoleHolder(state, claim)
  return cmsgpack.pack(
    FORMAT, claim.id, string.format('%.17g', claim.atLeast), claim.token, claim.since * 1000, claim.ttl,
    string.format('%.0f %.0f %.0f %s', claim.seq, claim.permits, state.limit, claim.holder),
    claim.expires, claim.closed
  )
end

local function packState(state)
  local holders = {}
  for i, holder in ipairs(state.holders) do holders[i] = packClaim(holder) end
  return cmsgpack.pack(FORMAT, false, {
    limit = state.limit, holders = holders, first = state.first, next = state.next,
    tickets = state.tickets, longest = state.longest, ends = state.ends, kept = state.kept,
    room = state.room,
  })
end

local function unpackState(packed)
  local ok, format, id, rest, token, since, ttl, details, expires, closed =
    pcall(cmsgpack.unpack, packed)
  -- cmsgpack unpacks a text that Holdfast did not write into numbers.
  if not ok or type(format) ~= 'number' or (id and type(id) ~= 'string') then
    error('HOLDFAST STRANGER', 0)
  end
  if format ~= FORMAT then error('HOLDFAST FORMAT ' .. tostring(format), 0) end
  if type(rest) == 'table' then
    for i, holder in ipairs(rest.holders) do rest.holders[i] = unpackClaim(holder) end
    -- Older versions of Holdfast do not store these two.
    rest.tickets = rest.tickets or rest.next - rest.first
    rest.longest = rest.longest or UNKNOWN_TTL_MS
    return rest
  end
  if type(token) ~= 'number' then error('HOLDFAST STRANGER', 0) end
  local atLeast, seq, permits, limit, holder = tonumber(rest), parseDetails(details)
  since, ttl = since / 1000, tonumber(ttl)
  expires = expires or since + ttl
  closed = closed or (atLeast > 0 and since + atLeast or 0)
  return {
    limit = limit, first = 1, next = 1, tickets = 0, longest = 0, ends = math.max(expires, closed),
    kept = 0,
    holders = { {
      id = id, permits = permits, atLeast = atLeast, holder = holder, since = since, seq = seq,
      ttl = ttl, expires = expires, token = token, floor = token, closed = closed, ended = 'no',
    } },
  }
end

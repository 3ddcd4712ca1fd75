-- Serves the claims and releases that free-names.lua has postponed, each by itself.

local function claimNames(id, request, key, nameCount)
  local kind, atLeast, ttl, details = string.match(request, '^(%a+) %d+ (%S+) (%S+) (.*)$')
  local mayQueue = kind == 'queue'
  atLeast, ttl = tonumber(atLeast), tonumber(ttl)
  local seq, permits, limit, holder = parseDetails(details)

  local function fits(state)
    return not state.waiting and state.inUse + permits <= limit
  end

  local own = {}
  for n = 1, nameCount do
    local state = openAndAdvance(key + 3 * (n - 1), true)
    local mine = findClaim(state, id)
    if hasEnded(state, id) then return lostReply(state, id) end
    if not mine then
      local other = limitOf(state)
      if other and other ~= limit then return { kind = 'mismatch', at = n - 1, limit = other } end
      if not mayQueue and not fits(state) then
        return { kind = 'busy', at = n - 1, position = positionOf(state, state.next) }
      end
      if mayQueue and not fits(state) and state.waiting and state.tickets >= MOST_WAITERS then
        return { kind = 'full', at = n - 1, waiting = state.tickets }
      end
    end
    own[n] = mine
  end

  -- Nothing was claimed so far: the claim gets all names or none.
  local grants = {}
  for n = 1, nameCount do
    local state, mine = states[KEYS[key + 3 * (n - 1)]], own[n]
    if mine then extend(state, mine, seq, ttl)
    else
      mine = {
        id = id, permits = permits, atLeast = atLeast, holder = holder, since = now, seq = seq,
        ttl = ttl, expires = now + ttl, token = 0, floor = 0, closed = 0, ended = 'no',
        channel = ticketChannel,
      }
      state.limit = limit
      if fits(state) then grant(state, mine, drawToken(state)) else enqueue(state, mine) end
    end
    -- Only a claim of one name leaves a ticket.
    if mine.token == 0 then return queuedReply(state, mine) end
    grants[#grants + 1] = grantReply(mine)
  end
  return { kind = 'granted', grants = grants }
end

local function release(id, request, key)
  local state = openAndAdvance(key)
  local mine = findClaim(state, id)
  if not mine then return lostReply(state, id) end
  if mine.token == 0 then dropTicket(state, mine)
  elseif mine.closed > now and request ~= 'unused' then
    mine.ended = 'released'
    moveEnd(state, mine, now)
  else removeHolder(state, mine) end
  advance(state)
  return 'released'
end

for _, one in ipairs(postponed) do
  local at, arg, key, nameCount = unpack(one)
  local id, request = ARGV[arg], ARGV[arg + 1]
  local isRelease = request == 'release' or request == 'unused'
  -- An error in one request is the reply to that request alone.
  local ok, reply = pcall(isRelease and release or claimNames, id, request, key, nameCount)
  if not ok then replies[at] = '!' .. messageOf(reply)
  else replies[at] = reply == 'released' and reply or cjson.encode(reply) end
end
saveAndNotify()
return replies[2] and replies or replies[1]

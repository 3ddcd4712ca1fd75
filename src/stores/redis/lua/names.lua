-- The rule of ../../rule.ts in the language of the server. Each name has two keys:
--   …n:NAME  its state: limit, holders, where its queue begins and ends (see encoding.lua)
--   …q:NAME  its queue, a hash: t<place> is a ticket, g<grantId> the place of that grantId's ticket
-- Both are deleted when nothing is left of them, and expire with the last lease or ticket otherwise.
-- Beside them, in the same slot, one token counter serves many names. The 256 counters never expire, so
-- that tokens keep rising after the clock was set back.

-- ARGV[1] is '<n> <channel>'. n is 0 in a cluster, where PUBLISH does not count the subscribers of other
-- nodes; otherwise 1 if the caller listens to its channel, 2 if it does not listen yet.
local listening, callerChannel = string.sub(ARGV[1], 1, 1), string.sub(ARGV[1], 3)
local skipsUnreachable = listening ~= '0'
-- A ticket without a channel is not notified: its process renews it as soon as it listens.
local ticketChannel = listening == '2' and '' or callerChannel

-- The whole script has one time: a lease that free-names.lua has granted must not expire within it.
if not micros then
  local time = redis.call('TIME')
  micros = time[1] * 1000000 + time[2]
end
local now = micros / 1000

local states, openedStates, grantedNow, drawnTokens = {}, {}, {}, {}
local handoverCount, unreachableChannels = 0, {}

-- A batch may have many requests for one name: its state is read and written once.
local function openState(key)
  local stateKey = KEYS[key]
  local state = states[stateKey]
  if state then return state end
  -- A key that Holdfast did not write must not fail the other requests of a batch.
  local stored = redis.pcall('GET', stateKey)
  if type(stored) == 'string' then state = unpackState(stored)
  elseif stored then error(stored.err, 0)
  else
    state = {
      limit = 0, holders = {}, first = 1, next = 1, tickets = 0, longest = 0, ends = 0, kept = 0,
    }
  end
  -- A claim with more time left than its ttl was granted before the clock was set back: its ttl counts from now.
  for _, holder in ipairs(state.holders) do
    if holder.ended == 'released' then holder.expires = math.min(holder.expires, now)
    elseif holder.expires > now + holder.ttl + 1 then
      holder.expires, state.changed = now + holder.ttl, true
    end
    if holder.closed > now + holder.atLeast + 1 then
      holder.closed, state.changed = now + holder.atLeast, true
    end
  end
  state.key, state.queueKey, state.counterKey, state.inUse = stateKey, KEYS[key + 1], KEYS[key + 2], 0
  states[stateKey] = state
  openedStates[#openedStates + 1] = state
  return state
end

-- When memory is full, Redis refuses a command that may need more, unless the script has written before.
-- HDEL of a missing field needs none and counts as a write: after it the command passes, and no lease is lost.
local function writeWhateverMemory(...)
  local done = redis.pcall(...)
  if type(done) == 'table' and done.err then
    redis.call('HDEL', openedStates[1].queueKey, '-')
    redis.call(...)
  end
end

local function keepUntil(state, ms)
  if ms > state.ends then state.ends = ms end
end

local function endsIn(claim) return math.max(claim.expires, claim.closed) - now end

local function isOver(claim) return claim.expires <= now and claim.closed <= now end

local function ticketAt(state, place)
  local stored = redis.call('HGET', state.queueKey, 't' .. toText(place))
  return stored and unpackClaim(stored)
end

local function saveTicket(state, ticket)
  keepUntil(state, ticket.expires)
  state.longest = math.max(state.longest, ticket.ttl)
  local place = toText(ticket.place)
  writeWhateverMemory('HSET', state.queueKey, 't' .. place, packClaim(ticket), 'g' .. ticket.id, place)
  if ticket.expires > state.kept then
    -- Longer than needed, so that the expiry is seldom moved.
    state.kept = ticket.expires + QUEUE_KEPT_MS
    redis.call('PEXPIREAT', state.queueKey, toText(state.kept))
  end
  state.changed = true
end

local function dropTicket(state, ticket)
  redis.call('HDEL', state.queueKey, 't' .. toText(ticket.place), 'g' .. ticket.id)
  state.tickets, state.changed = state.tickets - 1, true
end

-- Moves the living tickets to the front of the queue, so that no script walks over long rows of empty
-- places.
local function compactQueue(state)
  local to = state.first
  for place = state.first, state.next - 1 do
    local ticket = ticketAt(state, place)
    if ticket and ticket.expires <= now then dropTicket(state, ticket)
    elseif ticket then
      if place ~= to then
        redis.call('HDEL', state.queueKey, 't' .. toText(place))
        ticket.place = to
        saveTicket(state, ticket)
      end
      to = to + 1
    end
  end
  state.next, state.changed = to, true
  state.room = 2 * (to - state.first) + EMPTY_PLACES
end

local function enqueue(state, ticket)
  if state.first == state.next then
    -- The hash may be left from a queue whose state has expired.
    redis.call('DEL', state.queueKey)
    state.first, state.next, state.tickets, state.kept, state.room = 1, 1, 0, 0, EMPTY_PLACES
    state.longest = 0
  elseif state.next - state.first >= state.room then compactQueue(state) end
  ticket.place = state.next
  state.next, state.tickets = state.next + 1, state.tickets + 1
  state.waiting = true
  saveTicket(state, ticket)
end

local function drawToken(state)
  local last = drawnTokens[state.counterKey]
  if not last then
    last = redis.pcall('GET', state.counterKey) or '0'
    if type(last) == 'table' then error(last.err, 0) end
    last = tonumber(last) or 0
  end
  local token = math.max(last + 1, micros)
  if token > MAX_TOKEN then error('HOLDFAST LAST TOKEN', 0) end
  drawnTokens[state.counterKey] = token
  return token
end

-- The grant keeps the expiry of its ticket, which counts from the waiter's last request.
local function grant(state, claim, token)
  claim.token, claim.floor = token, token
  -- The holders stand in the order of their tokens.
  for _, holder in ipairs(state.holders) do
    if holder.ended == 'no' and holder.expires > now then
      claim.floor = holder.token
      break
    end
  end
  claim.since = now
  -- After the clock was set back, a ticket may have more time left than it was given.
  claim.expires = math.min(claim.expires, now + claim.ttl)
  if claim.atLeast > 0 then claim.closed = now + claim.atLeast end
  keepUntil(state, math.max(claim.expires, claim.closed))
  state.holders[#state.holders + 1] = claim
  state.byId[claim.id] = claim
  state.inUse = state.inUse + claim.permits
  state.changed, grantedNow[claim] = true, true
end

-- Publishes a message. False: nobody at this server listens to the channel, so this script may take back
-- the grant that the message was about. That does not prove that the process is dead: its subscription may be
-- lost while its commands work. So a ticket is kept if this script replies to it, if it has no channel yet, or
-- if it belongs to the caller. A subscriber at a replica receives messages of grants that were taken back:
-- for waiters, a message is a reason to ask the server, not a grant.
local function notify(channel, message)
  if channel == '' then return true end
  -- Without the right to publish, waiters find their grant at the next renewal of the ticket.
  local receivers = redis.pcall('PUBLISH', channel, message)
  if skipsUnreachable and receivers == 0 and channel ~= callerChannel then
    unreachableChannels[channel] = true
  end
  return not unreachableChannels[channel]
end

local function dropExpiredHolders(state)
  local holders, inUse, byId = {}, 0, {}
  for _, holder in ipairs(state.holders) do
    if isOver(holder) then state.changed = true
    else
      holders[#holders + 1] = holder
      byId[holder.id] = holder
      if holder.ended ~= 'revoked' then inUse = inUse + holder.permits end
    end
  end
  state.holders, state.inUse, state.byId = holders, inUse, byId
end

local function removeHolder(state, claim)
  for i, holder in ipairs(state.holders) do
    if holder == claim then
      table.remove(state.holders, i)
      break
    end
  end
  state.byId[claim.id] = nil
  state.inUse = state.inUse - claim.permits
  state.changed = true
end

-- Notes that this claim may end sooner than the first waiters know. Waiters that get a reply with
-- their position after this call know of it.
local function noteSoonerEnd(state, claim)
  state.soonerEnds, state.informed = state.soonerEnds or {}, {}
  table.insert(state.soonerEnds, claim)
end

-- Grants tickets from the front of the queue while they fit. `thorough` also drops expired tickets while
-- the name is full, because a position in a reply counts from the first living ticket. A script grants at most
-- HANDOVERS_AT_ONCE, because it blocks the server; it notifies the next waiter, whose request goes on.
local function advance(state, thorough)
  while state.first < state.next and (thorough or state.inUse < state.limit) do
    local ticket = ticketAt(state, state.first)
    if ticket and ticket.expires > now then
      local fits = state.inUse + ticket.permits <= state.limit
      local tooMany = handoverCount >= HANDOVERS_AT_ONCE
      local channel = ticket.channel
      if fits and tooMany and state.continuedBy ~= channel and not unreachableChannels[channel] then
        notify(channel, 'look')
        state.continuedBy = channel
      end
      if unreachableChannels[channel] then dropTicket(state, ticket)
      elseif tooMany or not fits then break
      else
        handoverCount = handoverCount + 1
        -- Drawing a token can fail, so it comes before changes that can't be undone.
        local token = drawToken(state)
        dropTicket(state, ticket)
        grant(state, ticket, token)
        state.toNotify = state.toNotify or {}
        table.insert(state.toNotify, ticket)
        if endsIn(ticket) < state.longest / RENEWALS_PER_TTL then
          noteSoonerEnd(state, ticket)
          -- Goes on past empty places to the first waiting ticket, where lookAtSoonerEnd() begins.
          thorough = true
        end
      end
    elseif ticket then dropTicket(state, ticket) end
    state.first = state.first + 1
    state.changed = true
  end
  state.waiting = state.first < state.next
  return state
end

local function openAndAdvance(key, thorough)
  local state = openState(key)
  -- Once is enough, as the time of a script stands still; every change to a state advances it again.
  if not state.byId then
    dropExpiredHolders(state)
    advance(state, thorough)
  elseif thorough then advance(state, true) end
  return state
end

local function earliestEnd(state)
  local earliest
  for _, holder in ipairs(state.holders) do
    if holder.ended ~= 'revoked' and (not earliest or endsIn(holder) < earliest) then
      earliest = endsIn(holder)
    end
  end
  return earliest
end

-- Changes when a holder's claim ends. If the name may be free sooner than the first waiters know, they
-- are notified: otherwise they would learn of it at the next renewal of their tickets.
local function moveEnd(state, claim, expires)
  local before = state.waiting and expires < claim.expires and earliestEnd(state)
  claim.expires, state.changed = expires, true
  if before and endsIn(claim) < before then
    noteSoonerEnd(state, claim)
    advance(state, true)
  end
end

-- Extends a claim, unless a later request of the same claim has arrived already, perhaps with a shorter ttl.
local function extend(state, claim, seq, ttl)
  claim.channel = ticketChannel
  if seq < claim.seq then return end
  claim.seq, claim.ttl = seq, ttl
  if claim.token == 0 then
    claim.expires = now + ttl
    saveTicket(state, claim)
  else
    moveEnd(state, claim, now + ttl)
    keepUntil(state, claim.expires)
  end
end

local function saveState(state)
  local holder = state.holders[1]
  local hasQueue = state.first < state.next
  state.changed = false
  if not holder and not hasQueue then
    redis.call('DEL', state.key)
    return
  end
  local packed
  local isSole = not hasQueue and #state.holders == 1
  if isSole and holder.ended == 'no' and holder.floor == holder.token then
    packed, state.ends = packSoleHolder(state, holder), math.max(holder.expires, holder.closed)
  else packed = packState(state) end
  writeWhateverMemory('SET', state.key, packed, 'PXAT', toText(math.ceil(state.ends)))
end

local function saveTokens()
  for counterKey, token in pairs(drawnTokens) do
    writeWhateverMemory('SET', counterKey, toText(token))
    drawnTokens[counterKey] = nil
  end
end

-- Notifies the first waiters if a holder's claim ends sooner than their last reply says, and before they
-- renew their tickets.
local function lookAtSoonerEnd(state)
  local sooner
  for _, claim in ipairs(state.soonerEnds or {}) do
    -- Another request of the same batch may have removed or revoked it.
    local isCurrent = state.byId[claim.id] == claim and claim.ended ~= 'revoked'
    if isCurrent and (not sooner or endsIn(claim) < sooner) then sooner = endsIn(claim) end
  end
  if not sooner then return end
  local waiting = 0
  for place = state.first, math.min(state.next - 1, state.first + EMPTY_PLACES) do
    local ticket = ticketAt(state, place)
    if ticket and ticket.expires > now then
      if ticket.ttl / RENEWALS_PER_TTL > sooner and not state.informed[ticket.id] then
        notify(ticket.channel, 'look ' .. ticket.id)
      end
      waiting = waiting + 1
      if waiting == WAITERS_AT_EXPIRY then return end
    end
  end
end

-- Publishes the grants of waiters, after they are written. Returns whether one could not be reached and
-- was taken back.
local function notifyGranted(state)
  local granted, tookBack = state.toNotify or {}, false
  state.toNotify = nil
  for _, claim in ipairs(granted) do
    -- Another request of the same batch may have revoked or released it.
    local isHeld = state.byId[claim.id] == claim and claim.ended == 'no'
    if isHeld and not claim.isInReply and not notify(claim.channel, 'granted ' .. claim.id) then
      removeHolder(state, claim)
      tookBack = true
    end
  end
  return tookBack
end

local function saveAndNotify()
  saveTokens()
  for _, state in ipairs(openedStates) do
    while state.changed do
      saveState(state)
      if notifyGranted(state) then
        advance(state)
        saveTokens()
      end
    end
    lookAtSoonerEnd(state)
  end
end

-- The claim of this grantId that has not ended. An expired ticket is dropped here, because advance() drops
-- only those at the front.
local function findClaim(state, id)
  local holder = state.byId[id]
  if holder and holder.ended == 'no' then return holder end
  if not state.waiting then return nil end
  local place = redis.call('HGET', state.queueKey, 'g' .. id)
  local ticket = place and ticketAt(state, tonumber(place))
  if not ticket or ticket.expires > now then return ticket end
  dropTicket(state, ticket)
  return nil
end

-- Whether the grant was revoked, or has expired and only keeps the name closed: its grantId gets no other.
local function hasEnded(state, id)
  local holder = state.byId[id]
  return holder and (holder.ended ~= 'no' or holder.expires <= now)
end

-- Nil: the name is not in use.
local function limitOf(state)
  for _, holder in ipairs(state.holders) do
    if holder.ended ~= 'revoked' then return state.limit end
  end
  return state.waiting and state.limit
end

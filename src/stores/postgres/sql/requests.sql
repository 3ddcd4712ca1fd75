-- Claims and releases.

-- The functions that build replies are STABLE, as json_build_object() is: the server puts only such into the
-- expression that calls them.

CREATE OR REPLACE FUNCTION grant_reply(c claims) RETURNS json LANGUAGE sql STABLE AS $$
  SELECT json_build_object('token', c.token::text, 'floor', c.floor::text, 'ttlMs', c.ttl / 1000.0,
    'seq', c.seq, 'handedOver', false)
$$;

CREATE OR REPLACE FUNCTION position_reply(ahead bigint, ends bigint, now_at bigint, holder text)
RETURNS json LANGUAGE sql STABLE AS $$
  SELECT json_build_object('ahead', greatest(ahead, 0), 'freeInMs', (ends - now_at) / 1000.0, 'holder', holder)
$$;

CREATE OR REPLACE FUNCTION queued_reply(c claims, first_ticket bigint, ends bigint, now_at bigint, holder text)
RETURNS json LANGUAGE sql STABLE AS $$
  SELECT json_build_object('kind', 'queued', 'position',
    position_reply(c.place - coalesce(first_ticket, c.place), ends, now_at, holder))
$$;

CREATE OR REPLACE FUNCTION lost_reply(n names, id text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE c claims; is_taken boolean := (n.held).grant_id <> id AND (n.held).ended = 'no';
BEGIN
  IF n.others > 0 THEN
    SELECT * INTO c FROM claims WHERE name = n.name AND grant_id = id AND ended = 'revoked';
    IF FOUND THEN
      RETURN json_build_object('kind', 'lost', 'reason', 'revoked', 'why', format('by %s: %s', c.ended_by, c.ended_why));
    END IF;
    is_taken := is_taken OR EXISTS (
      SELECT FROM claims WHERE name = n.name AND token > 0 AND ended = 'no' AND grant_id <> id);
  END IF;
  RETURN json_build_object('kind', 'lost', 'reason', CASE WHEN is_taken THEN 'superseded' ELSE 'expired' END);
END $$;

-- Whether the grant was revoked, or has expired and only keeps the name closed: its grantId gets no other.
CREATE OR REPLACE FUNCTION has_ended(n names, mine claims, id text, now_at bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF mine.token > 0 THEN RETURN mine.expires <= now_at; END IF;
  RETURN (n.held).grant_id = id OR n.others > 0 AND mine.token IS NULL AND EXISTS (
    SELECT FROM claims WHERE name = n.name AND grant_id = id AND token > 0);
END $$;

-- In the functions below, batch_now is the time of a batch, once all its names are locked; null: there is no batch. Then
-- claim_names() and release_name() read the time when they have locked the name. claim_free_name() and
-- release_sole_grant() read it before, as they lock the name with the statement that needs the time. That does no harm:
-- an earlier time only finds fewer names free and ends a grant sooner, and the last token is that of the locked row.

-- Claims all of the names or none. The caller has locked their rows if they are several.
CREATE OR REPLACE FUNCTION claim_names(
  wanted text[], id text, new_seq bigint, new_permits bigint, new_capacity bigint, new_ttl bigint,
  new_at_least bigint, label text, may_queue boolean, new_channel text, batch_now bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  now_at bigint;
  n names;
  s record;
  f record;
  e record;
  mine claims;
  reply json;
  opened names[]; advanced names[]; own claims[]; fits boolean[]; ends bigint[]; lowest bigint[];
  grants json[];
  is_saved boolean;
BEGIN
  FOR i IN 1 .. cardinality(wanted) LOOP
    n := open_name(wanted[i], true);
    now_at := coalesce(now_at, batch_now, now_us());
    opened[i] := n;
    s := advance(n, now_at, id, NULL);
    n := s.n;
    f := find_claim(n, id, now_at);
    n := f.n; mine := f.c;
    fits[i] := s.first_ticket IS NULL AND s.in_use + new_permits <= new_capacity;
    reply := CASE
      WHEN has_ended(n, mine, id, now_at) THEN lost_reply(n, id)
      WHEN mine.token IS NOT NULL THEN NULL
      WHEN (s.in_use > 0 OR s.first_ticket IS NOT NULL) AND n.capacity <> new_capacity THEN
        json_build_object('kind', 'mismatch', 'at', i - 1, 'limit', n.capacity)
      WHEN fits[i] THEN NULL
      WHEN NOT may_queue THEN json_build_object('kind', 'busy', 'at', i - 1,
        'position', position_reply(n.waiting, s.ends, now_at, s.first_holder))
    END;
    IF reply IS NULL AND mine.token IS NULL AND NOT fits[i] AND n.waiting >= $MOST_WAITERS THEN
      n := remove_expired_tickets(n, now_at);
      IF n.waiting >= $MOST_WAITERS THEN
        reply := json_build_object('kind', 'full', 'at', i - 1, 'waiting', n.waiting);
      END IF;
    END IF;
    advanced[i] := n; own[i] := mine; ends[i] := s.ends; lowest[i] := s.lowest;
    IF reply IS NOT NULL THEN
      FOR j IN 1 .. i LOOP is_saved := save_name(advanced[j], opened[j], now_at); END LOOP;
      RETURN reply;
    END IF;
  END LOOP;

  FOR i IN 1 .. cardinality(wanted) LOOP
    n := advanced[i]; mine := own[i];
    IF mine.token IS NOT NULL THEN
      e := extend(n, mine, now_at, new_seq, new_ttl, new_channel, ends[i]);
      n := e.n; mine := e.c;
    ELSE
      n.capacity := new_capacity;
      n.last_place := n.last_place + 1;
      mine := ROW(n.name, new_permits, label, new_channel, 'no', '', '', new_ttl, new_at_least, 0, id, n.last_place,
        0, 0, now_at, new_seq, now_at + new_ttl);
      IF fits[i] THEN
        n.last_token := next_token(n.last_token, now_at);
        mine.token := n.last_token;
        mine.floor := least(lowest[i], mine.token);
        IF new_at_least > 0 THEN mine.closed := now_at + new_at_least; END IF;
      END IF;
      n := add_claim(n, mine);
    END IF;
    is_saved := save_name(n, opened[i], now_at);
    -- Only a claim of one name leaves a ticket.
    IF mine.token = 0 THEN RETURN queued_reply(mine, s.first_ticket, s.ends, now_at, s.first_holder); END IF;
    grants[i] := grant_reply(mine);
  END LOOP;
  RETURN json_build_object('kind', 'granted', 'grants', grants);
END $$;

-- Hands a name over to its first waiter as advance() does, if nothing else has to be done. The caller has locked the row,
-- and releases the grant in it, behind which are only tickets. False: nothing was done.
CREATE OR REPLACE FUNCTION hand_over(n names, now_at bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  drawn bigint := next_token(n.last_token, now_at);
  c claims;
BEGIN
  IF drawn > now_at THEN RETURN false; END IF;
  DELETE FROM claims AS t WHERE t.name = n.name AND t.place = n.first_place AND t.permits = n.capacity
      AND t.at_least = 0 AND t.expires > now_at AND NOT is_ahead(t, now_at)
      AND NOT EXISTS (
        SELECT FROM (
            SELECT * FROM claims WHERE name = n.name AND place > n.first_place ORDER BY place LIMIT $WAITERS_AT_EXPIRY
          ) AS next
          WHERE next.ttl / $RENEWALS_PER_TTL > t.expires - now_at OR next.expires <= now_at
            OR next.expires > now_at + next.ttl)
    RETURNING t.* INTO c;
  IF NOT FOUND THEN RETURN false; END IF;
  UPDATE names SET last_token = drawn, first_place = c.place + 1, others = n.others - 1, waiting = n.waiting - 1,
      held = ROW(c.name, c.permits, c.holder, c.channel, 'no', '', '', c.ttl, 0, 0, c.grant_id, c.place, drawn, drawn,
        now_at, c.seq, c.expires)::claims
    WHERE name = n.name;
  RETURN notify_waiter(c, format('granted %s %s %s %s', drawn, drawn, c.ttl, c.seq)) IS NOT NULL;
END $$;

CREATE OR REPLACE FUNCTION release_name(wanted text, id text, unused boolean, batch_now bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  n names := open_name(wanted, false);
  opened names := n;
  now_at bigint := coalesce(batch_now, now_us());
  s record;
  f record;
  mine claims := n.held;
  ends bigint := greatest(mine.expires, mine.closed);
  is_saved boolean; setting text;
BEGIN
  IF n.name IS NULL THEN RETURN lost_reply(n, id); END IF;
  -- If this grant is exclusive and only tickets are behind it, no ticket could be granted before the release.
  IF mine.grant_id = id AND mine.ended = 'no' AND mine.expires > now_at AND mine.permits = $LOCK_LIMIT
    AND n.others = n.waiting AND NOT is_ahead(mine, now_at)
  THEN
    IF (unused OR mine.closed <= now_at) AND hand_over(n, now_at) THEN RETURN 'released'; END IF;
  ELSE
    s := advance(n, now_at, id, NULL);
    f := find_claim(s.n, id, now_at);
    n := f.n; mine := f.c; ends := s.ends;
    IF mine.token IS NULL THEN
      is_saved := save_name(n, opened, now_at);
      RETURN lost_reply(n, id);
    END IF;
  END IF;
  -- After a crash, a shared grant that was back would lower the floors of new ones below a token handed over here.
  IF n.waiting > 0 AND mine.token > 0 AND mine.permits < $LOCK_LIMIT THEN setting := set_commit(true); END IF;
  IF mine.token > 0 AND mine.closed > now_at AND NOT unused THEN
    mine.ended := 'released';
    mine.expires := now_at;
    n := save_claim(n, mine);
  ELSE n := remove_claim(n, mine);
  END IF;
  IF n.waiting > 0 THEN
    s := advance(n, now_at, id, ends);
    n := s.n;
  END IF;
  is_saved := save_name(n, opened, now_at);
  RETURN 'released';
END $$;

-- Claims one name that is free, as nearly all are. Null: it is not free.
CREATE OR REPLACE FUNCTION claim_free_name(
  wanted text, id text, new_seq bigint, new_permits bigint, new_capacity bigint, new_ttl bigint,
  new_at_least bigint, label text, batch_now bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  now_at bigint;
  drawn bigint;
BEGIN
  -- The second time if its row had yet to be made.
  FOR attempt IN 1 .. 2 LOOP
    now_at := coalesce(batch_now, now_us());
    UPDATE names SET
        last_token = next_token(last_token, now_at), last_place = last_place + 1, capacity = new_capacity,
        held = ROW(wanted, new_permits, label, NULL, 'no', '', '', new_ttl, new_at_least,
          CASE WHEN new_at_least > 0 THEN now_at + new_at_least ELSE 0 END, id, last_place + 1,
          next_token(last_token, now_at), next_token(last_token, now_at), now_at, new_seq, now_at + new_ttl)::claims
      WHERE name = wanted AND others = 0
        AND ((held).token IS NULL OR greatest((held).expires, (held).closed) <= now_at)
      RETURNING last_token INTO drawn;
    EXIT WHEN FOUND OR EXISTS (SELECT FROM names WHERE name = wanted);
    PERFORM make_names(ARRAY[wanted]);
  END LOOP;
  RETURN drawn;
END $$;

-- The reply for a name whose grant leaves no room, without a lock on its row. Null: the row has to be locked.
CREATE OR REPLACE FUNCTION busy_reply(wanted text, id text, new_permits bigint, new_capacity bigint, batch_now bigint)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  n names;
  c claims;
  now_at bigint := coalesce(batch_now, now_us());
BEGIN
  SELECT * INTO n FROM names WHERE name = wanted;
  c := n.held;
  IF c.grant_id <> id AND greatest(c.expires, c.closed) > now_at AND NOT is_ahead(c, now_at) AND n.capacity = new_capacity
    AND c.permits + new_permits > new_capacity
    AND (n.others = 0 OR c.permits = new_capacity
      AND NOT EXISTS (SELECT FROM claims WHERE name = wanted AND grant_id = id))
  THEN
    -- Expired tickets stay until somebody locks the name: without a living one, nobody is ahead.
    IF n.waiting > 0 AND NOT EXISTS (SELECT FROM claims WHERE name = wanted AND token = 0 AND expires > now_at) THEN
      n.waiting := 0;
    END IF;
    RETURN json_build_object('kind', 'busy', 'at', 0, 'position',
      position_reply(n.waiting, greatest(c.expires, c.closed), now_at, c.holder));
  END IF;
  RETURN NULL;
END $$;

-- Releases the only grant of a name without waiters. Null: the name is in another state.
CREATE OR REPLACE FUNCTION release_sole_grant(wanted text, id text, unused boolean, batch_now bigint)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE now_at bigint := coalesce(batch_now, now_us());
BEGIN
  UPDATE names SET held.expires = 0, held.closed = 0, freed = now_at
    WHERE name = wanted AND others = 0 AND (held).grant_id = id AND (held).ended = 'no'
      AND (held).expires > now_at AND (unused OR (held).closed <= now_at);
  RETURN CASE WHEN FOUND THEN 'released' END;
END $$;

-- Serves the claims and releases of one turn of a client's event loop, in their order (Request in index.ts), but claims
-- of names that are busy come first: they are answered before a row is locked, and write nothing.
-- A reply is null if another transaction has locked or deleted the name: the client sends the request again, first with those
-- of other locked names, and then with those of its name alone, in a call that waits for the lock (`waits`). A call with a
-- single request always waits.
CREATE OR REPLACE FUNCTION requests(
  batch json, is_durable boolean, new_channel text, lock_timeout_ms integer, waits boolean
) RETURNS text[] LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
DECLARE
  r record;
  reply text;
  replies text[];
  -- Null for a single request of one name, which locks it by itself.
  locked text[];
  -- Names of claims that may be busy; names of all other requests; the replies to claims of the former alone.
  held_names text[]; changing text[]; busy text[];
  batch_now bigint;
  at integer := 0;
  is_batch boolean := json_array_length(batch) > 1;
  setting text;
BEGIN
  setting := begin_call(lock_timeout_ms, is_durable);
  IF is_batch THEN
    held_names := ARRAY(SELECT n.name FROM names AS n
      WHERE n.name = ANY (ARRAY(SELECT e -> 'names' ->> 0 FROM json_array_elements(batch) AS e WHERE e ->> 'kind' = 'claim'))
        AND greatest((n.held).expires, (n.held).closed) > now_us());
    IF cardinality(held_names) > 0 THEN
      changing := ARRAY(SELECT e -> 'names' ->> 0 FROM json_array_elements(batch) AS e WHERE e ->> 'kind' <> 'claim');
      busy := ARRAY(
        SELECT CASE WHEN c.kind = 'claim' AND cardinality(c.names) = 1
            AND c.names[1] = ANY (held_names) AND c.names[1] <> ALL (changing)
            THEN busy_reply(c.names[1], c.id, c.permits, c."limit", NULL) END
          FROM json_to_recordset(batch) AS c(kind text, id text, names text[], permits bigint, "limit" bigint));
    END IF;
    locked := lock_names(ARRAY(
      SELECT w FROM json_array_elements(batch) WITH ORDINALITY AS e(request, i), json_array_elements_text(request -> 'names') AS w
        WHERE busy[i] IS NULL), NOT waits);
    batch_now := now_us();
  END IF;
  FOR r IN SELECT * FROM json_to_recordset(batch) AS r(
    kind text, id text, names text[], seq bigint, permits bigint, "limit" bigint, ttl bigint,
    "atLeast" bigint, holder text
  ) LOOP
    at := at + 1;
    reply := busy[at];
    IF NOT is_batch AND cardinality(r.names) > 1 THEN
      locked := lock_names(r.names, false);
    END IF;
    -- The row of a single claim may be deleted while it waits for another: to make it again now would break the order.
    IF reply IS NOT NULL OR NOT r.names <@ locked AND (is_batch OR NOT waits) THEN
      replies := array_append(replies, reply);
      CONTINUE;
    END IF;
    IF r.kind = 'release' OR r.kind = 'unused' THEN
      reply := coalesce(release_sole_grant(r.names[1], r.id, r.kind = 'unused', batch_now),
        release_name(r.names[1], r.id, r.kind = 'unused', batch_now));
    ELSE
      IF cardinality(r.names) = 1 THEN
        reply := claim_free_name(
          r.names[1], r.id, r.seq, r.permits, r."limit", r.ttl, r."atLeast", r.holder, batch_now);
        IF reply IS NULL AND r.kind = 'claim' THEN
          reply := busy_reply(r.names[1], r.id, r.permits, r."limit", batch_now);
        END IF;
      END IF;
      reply := coalesce(reply, claim_names(r.names, r.id, r.seq, r.permits, r."limit", r.ttl, r."atLeast",
        r.holder, r.kind = 'queue', new_channel, batch_now));
    END IF;
    replies := array_append(replies, reply);
  END LOOP;
  RETURN replies;
END $$;

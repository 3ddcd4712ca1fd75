-- Requests of people: revoke, resize, inspect. And the deletion of rows that are no longer used.

-- A claim as ShownClaim in shared/name-info.ts has it.
CREATE OR REPLACE FUNCTION shown_claim(c claims, capacity bigint) RETURNS json LANGUAGE sql STABLE AS $$
  SELECT json_build_object('permits', c.permits, 'limit', capacity, 'holder', c.holder, 'sinceMs', c.since / 1000.0,
    'expiresAtMs', c.expires / 1000.0, 'closedUntilMs', c.closed / 1000.0, 'atLeastMs', c.at_least / 1000.0,
    'token', c.token::text, 'ended', c.ended, 'endedBy', c.ended_by, 'endedWhy', c.ended_why)
$$;

CREATE OR REPLACE FUNCTION description(name text, now_at bigint, shown json) RETURNS json LANGUAGE sql STABLE AS $$
  SELECT json_build_object('name', name, 'nowMs', now_at / 1000.0, 'claims', shown)
$$;

CREATE OR REPLACE FUNCTION revoke_name(wanted text, by_whom text, reason text, lock_timeout_ms integer)
RETURNS json LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
DECLARE
  n names;
  opened names;
  now_at bigint;
  c claims;
  s record;
  granted bigint;
  revoked json[];
  is_saved boolean; setting text;
BEGIN
  setting := begin_call(lock_timeout_ms, true);
  n := open_name(wanted, false);
  IF n.name IS NULL THEN RETURN description(wanted, now_us(), '[]'); END IF;
  opened := n;
  granted := n.last_token;
  now_at := now_us();
  s := advance(n, now_at, '', NULL);
    n := s.n;
  -- Waiters that this very step has granted keep the name: the caller meant the holders before them.
  FOR c IN
    SELECT (n.held).* WHERE (n.held).token <= granted
    UNION ALL
    SELECT * FROM claims WHERE name = n.name AND token BETWEEN 1 AND granted AND ended <> 'revoked'
    ORDER BY place
  LOOP
    revoked := array_append(revoked, shown_claim(c, n.capacity));
    n := remove_claim(n, c);
    -- Kept beyond its lease: its holder's renewal learns the reason, and people see it.
    c.ttl := greatest(c.expires - now_at, $REVOKED_KEPT_US);
    c.expires := now_at + c.ttl;
    c.ended := 'revoked'; c.ended_by := by_whom; c.ended_why := reason;
    c.since := now_at; c.closed := 0;
    n := add_claim(n, c);
  END LOOP;
  -- The holders of this step have yet to learn that they were revoked.
  FOR c IN
    SELECT * FROM claims WHERE name = n.name AND ended = 'revoked' ORDER BY since DESC, place DESC OFFSET $REVOKED_KEPT_MANY
  LOOP
    IF c.since < now_at THEN n := remove_claim(n, c); END IF;
  END LOOP;
  s := advance(n, now_at, '', NULL);
    n := s.n;
  is_saved := save_name(n, opened, now_at);
  RETURN description(wanted, now_at, coalesce(array_to_json(revoked), '[]'));
END $$;

CREATE OR REPLACE FUNCTION resize_name(wanted text, new_capacity bigint, lock_timeout_ms integer)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
DECLARE
  n names;
  opened names;
  now_at bigint;
  s record;
  c claims;
  before bigint;
  is_saved boolean; setting text;
BEGIN
  setting := begin_call(lock_timeout_ms, true);
  n := open_name(wanted, false);
  IF n.name IS NULL THEN RETURN NULL; END IF;
  opened := n;
  now_at := now_us();
  s := advance(n, now_at, '', NULL);
  n := s.n;
  IF s.in_use > 0 OR s.first_ticket IS NOT NULL THEN before := n.capacity; END IF;
  IF before NOT IN ($LOCK_LIMIT, new_capacity) THEN
    n.capacity := new_capacity;
    FOR c IN SELECT * FROM claims WHERE name = n.name AND token = 0 AND permits > new_capacity LOOP
      n := remove_claim(n, c);
    END LOOP;
    s := advance(n, now_at, '', NULL);
    n := s.n;
  END IF;
  is_saved := save_name(n, opened, now_at);
  RETURN before;
END $$;

-- The names in use from `first` up to `beyond` (null: the end), in order, each with all its claims.
CREATE OR REPLACE FUNCTION describe_names(first text, beyond text, many integer) RETURNS SETOF json
LANGUAGE sql VOLATILE SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
  SELECT description(n.name, now_us(), (
      SELECT json_agg(shown_claim(c, n.capacity) ORDER BY c.place)
        FROM (SELECT (n.held).* WHERE greatest((n.held).expires, (n.held).closed) > 0
          UNION ALL SELECT * FROM claims WHERE claims.name = n.name AND n.others > 0) AS c))
    FROM names AS n
    WHERE n.name >= first AND (beyond IS NULL OR n.name < beyond)
      AND (greatest((n.held).expires, (n.held).closed) > 0 OR n.others > 0)
    ORDER BY n.name LIMIT many
$$;

-- Whether the name is free, and has been since before that time.
CREATE OR REPLACE FUNCTION ended_before(n names, time_at bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT n.freed < time_at AND ((n.held).token IS NULL OR greatest((n.held).expires, (n.held).closed) < time_at)
    AND (n.others = 0
      OR NOT EXISTS (SELECT FROM claims AS c WHERE c.name = n.name AND greatest(c.expires, c.closed) >= time_at))
$$;

-- Deletes the rows of names that have been free for a while, among the next `many` rows. It goes on where the last
-- call of any process has stopped, as a process may live for one release only. Calls at the same time do nothing.
CREATE OR REPLACE FUNCTION delete_free_names(many integer, free_for bigint, lock_timeout_ms integer)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
DECLARE
  d deleted_names;
  last text;
  checked integer;
  free_before bigint := now_us() - free_for;
  free text[];
  highest bigint;
  setting text;
BEGIN
  setting := begin_call(lock_timeout_ms, false);
  SELECT * INTO d FROM deleted_names FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN RETURN; END IF;
  SELECT max(w.name), count(*) INTO last, checked
    FROM (SELECT name FROM names WHERE name > d.checked_to ORDER BY name LIMIT many) AS w;
  free := ARRAY(SELECT name FROM names
    WHERE name > d.checked_to AND name <= last AND ended_before(names, free_before)
    ORDER BY name FOR UPDATE SKIP LOCKED);
  -- A statement of its own: the one above may have read the claims before it had locked their name.
  WITH gone AS (
    DELETE FROM names WHERE name = ANY (free) AND ended_before(names, free_before) RETURNING name, last_token
  )
  SELECT array_agg(name), max(last_token) INTO free, highest FROM gone;
  DELETE FROM claims WHERE name = ANY (free);
  UPDATE deleted_names SET last_token = greatest(last_token, highest),
    checked_to = CASE WHEN checked < many THEN '' ELSE last END;
END $$;

-- Locks of sessions (stores/postgres/session): the server's advisory locks are the locks; the rows say who has them.

-- Unlogged: a crash of the server ends all sessions, and empties the table.
CREATE UNLOGGED TABLE IF NOT EXISTS session_locks (
  -- The number of the advisory lock: a hash of the name.
  key bigint NOT NULL,
  grant_id text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  holder text NOT NULL,
  is_shared boolean NOT NULL,
  token bigint NOT NULL,
  -- When it was granted, in microseconds; the ttl in milliseconds.
  since bigint NOT NULL,
  ttl bigint NOT NULL,
  -- A random number: the session has an advisory lock on it for as long as it lives.
  session bigint NOT NULL,
  PRIMARY KEY (key, grant_id)
);

CREATE SEQUENCE IF NOT EXISTS session_tokens MAXVALUE $MAX_TOKEN;

-- Not for the session's own number: it would get its lock once more, and seem dead.
CREATE OR REPLACE FUNCTION is_alive(session bigint) RETURNS boolean LANGUAGE sql VOLATILE AS
$$ SELECT NOT pg_try_advisory_xact_lock_shared(session) $$;

-- The sequence follows the clock within 10 ms, so that tokens rise after a failover to a server that lacks the last
-- ones. When the clock is set back, it counts on by itself. A caller draws once it has the lock, after all earlier holders.
CREATE OR REPLACE FUNCTION next_session_token() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  token bigint := nextval('session_tokens');
BEGIN
  IF token >= now_us() - 10000 THEN RETURN token; END IF;
  -- Two sessions at once could set it back. Meanwhile others draw some tokens by nextval, but not 10,000.
  PERFORM pg_advisory_xact_lock($SESSION_TOKEN_LOCK);
  token := nextval('session_tokens');
  IF token >= now_us() - 10000 THEN RETURN token; END IF;
  RETURN setval('session_tokens', now_us());
END $$;

-- Marks the session as alive, and deletes the rows of dead sessions.
CREATE OR REPLACE FUNCTION begin_session(own_session bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
BEGIN
  -- Otherwise the error would be about an unlogged table, and seem to go away.
  IF pg_is_in_recovery() THEN RAISE read_only_sql_transaction; END IF;
  PERFORM pg_advisory_lock(own_session);
  DELETE FROM session_locks AS l USING (
    SELECT key, grant_id FROM session_locks WHERE session IN (
      SELECT s.session FROM (SELECT DISTINCT session FROM session_locks) AS s WHERE NOT is_alive(s.session)
    ) FOR UPDATE SKIP LOCKED
  ) AS dead WHERE l.key = dead.key AND l.grant_id = dead.grant_id;
END $$;

-- Tries each lock, and draws its token once the lock is held. `is_locked`: the session has the shared lock already.
-- Replies in order. After an error, the session keeps locks that were taken: the caller has to release them all.
CREATE OR REPLACE FUNCTION claim_session_locks(
  own_session bigint, keys bigint[], ids text[], wanted text[], holders text[], ttls bigint[], shared boolean[],
  is_locked boolean[]
) RETURNS SETOF json LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
DECLARE
  is_granted boolean;
  drawn bigint;
  lowest bigint;
  other session_locks;
BEGIN
  -- Readers of a name take turns up to the commit, so that each sees the tokens of those before it. In one order,
  -- and before any token: no two sessions wait for each other.
  PERFORM pg_advisory_xact_lock((turn.key >> 32)::integer, (turn.key << 32 >> 32)::integer) FROM (
    SELECT DISTINCT c.key FROM unnest(keys, shared) AS c(key, is_shared) WHERE c.is_shared ORDER BY c.key
  ) AS turn;
  FOR i IN 1 .. cardinality(keys) LOOP
    is_granted := CASE WHEN is_locked[i] THEN true WHEN shared[i] THEN pg_try_advisory_lock_shared(keys[i])
      ELSE pg_try_advisory_lock(keys[i]) END;
    IF is_granted THEN
      drawn := next_session_token();
      -- A session that has died may have left a row under the same id. While a writer has the lock, any row is left over:
      -- of a session that ends right now, or of a reader that has unlocked and has yet to commit. This waits for that
      -- commit. Otherwise later readers would get the floor of that reader, and let a stale writer pass the fence.
      DELETE FROM session_locks AS l WHERE l.key = keys[i] AND (l.grant_id = ids[i] OR NOT shared[i]);
      INSERT INTO session_locks
        VALUES (keys[i], ids[i], wanted[i], holders[i], shared[i], drawn, now_us(), ttls[i], own_session);
      lowest := drawn;
      IF shared[i] THEN
        SELECT min(l.token) INTO lowest FROM session_locks AS l
          WHERE l.key = keys[i] AND l.is_shared AND (l.session = own_session OR is_alive(l.session));
      END IF;
      RETURN NEXT json_build_object('token', drawn::text, 'floor', lowest::text);
    ELSE
      SELECT * INTO other FROM session_locks AS l
        WHERE l.key = keys[i] AND is_alive(l.session) ORDER BY l.token LIMIT 1;
      RETURN NEXT json_build_object('name', other.name, 'holder', other.holder);
    END IF;
  END LOOP;
END $$;

-- `unlock`: no other claim of the session needs the lock.
CREATE OR REPLACE FUNCTION release_session_locks(keys bigint[], ids text[], shared boolean[], unlock boolean[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
BEGIN
  DELETE FROM session_locks AS l USING unnest(keys, ids) AS r(key, id) WHERE l.key = r.key AND l.grant_id = r.id;
  PERFORM CASE WHEN r.is_shared THEN pg_advisory_unlock_shared(r.key) ELSE pg_advisory_unlock(r.key) END
    FROM unnest(keys, shared, unlock) AS r(key, is_shared, is_last) WHERE r.is_last;
END $$;

-- The names held from `first` up to `beyond` (null: the end), in order, each with its holders as ShownClaim in
-- shared/name-info.ts has them. The times count from now. Only a holder knows since when its ttl counts.
CREATE OR REPLACE FUNCTION describe_session_locks(first text, beyond text, many integer) RETURNS SETOF json
LANGUAGE sql VOLATILE SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
  SELECT json_build_object('name', l.name, 'nowMs', 0, 'claims', json_agg(json_build_object('holder', l.holder,
      'permits', CASE WHEN l.is_shared THEN 1 ELSE $LOCK_LIMIT END, 'limit', $LOCK_LIMIT, 'token', l.token::text,
      'sinceMs', (l.since - now_us()) / 1000.0, 'expiresAtMs', l.ttl, 'closedUntilMs', 0, 'atLeastMs', 0, 'ended', 'no')
      ORDER BY l.token))
    FROM session_locks AS l
    JOIN (SELECT s.session FROM (SELECT DISTINCT session FROM session_locks) AS s WHERE is_alive(s.session)) AS alive
      USING (session)
    WHERE l.name >= first AND (beyond IS NULL OR l.name < beyond)
    GROUP BY l.name ORDER BY l.name LIMIT many
$$;

-- Records and meters (core/records.ts), by the rule of stores/records-rule.ts. Times are in microseconds since 1970, by
-- the server's clock, read once the row is locked.

CREATE TABLE IF NOT EXISTS records (
  key text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL,
  keep bigint NOT NULL,
  expires bigint NOT NULL,
  version text COLLATE "C" NOT NULL,
  value text NOT NULL
);

-- No index has a column that a take changes, so takes stay HOT updates.
CREATE TABLE IF NOT EXISTS meters (
  key text COLLATE "C" PRIMARY KEY,
  since bigint NOT NULL,
  used bigint NOT NULL,
  -- When it is full.
  expires bigint NOT NULL
) WITH (fillfactor = 70);

CREATE OR REPLACE FUNCTION shown_record(r records) RETURNS json LANGUAGE sql IMMUTABLE AS $$
  SELECT json_build_object('value', r.value, 'version', r.version, 'token', r.token::text)
$$;

-- The record, and its row locked; null if there is none.
CREATE OR REPLACE FUNCTION open_record(wanted text) RETURNS records LANGUAGE plpgsql AS $$
DECLARE
  r records;
  now_at bigint;
BEGIN
  SELECT * INTO r FROM records WHERE key = wanted FOR UPDATE;
  now_at := now_us();
  -- The clock was set back: the record's time counts from now.
  IF r.expires > now_at + r.keep THEN
    UPDATE records SET expires = now_at + r.keep WHERE key = wanted;
  END IF;
  IF r.expires <= now_at THEN RETURN NULL; END IF;
  RETURN r;
END $$;

-- The record; null if there is none. A standby refuses, because what it has may be old.
CREATE OR REPLACE FUNCTION read_record(wanted text, lock_timeout_ms integer) RETURNS json
LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
DECLARE
  r records;
  now_at bigint;
BEGIN
  IF pg_is_in_recovery() THEN RAISE read_only_sql_transaction; END IF;
  PERFORM begin_call(lock_timeout_ms, true);
  SELECT * INTO r FROM records WHERE key = wanted;
  now_at := now_us();
  IF r.expires > now_at + r.keep THEN r := open_record(wanted); END IF;
  IF r.expires > now_at THEN RETURN shown_record(r); END IF;
  RETURN NULL;
END $$;

-- '{"kind":"written"}', or 'refused' with the record that is there. `expected`: the version that the condition names.
CREATE OR REPLACE FUNCTION write_record(
  wanted text, new_value text, new_version text, new_keep bigint, condition text, expected text, new_token bigint,
  lock_timeout_ms integer
) RETURNS json LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
DECLARE
  r records;
  has_record boolean;
  token_after bigint;
BEGIN
  PERFORM begin_call(lock_timeout_ms, true);
  -- Another transaction may insert the row, or delete it, but not that often.
  FOR attempt IN 1 .. 100 LOOP
    r := open_record(wanted);
    has_record := r.key IS NOT NULL;
    -- The same write again: its reply was lost.
    IF r.version = new_version THEN RETURN json_build_object('kind', 'written'); END IF;
    token_after := coalesce(r.token, 0);
    IF condition = 'absent' AND has_record
      OR condition = 'version' AND r.version IS DISTINCT FROM expected
      OR condition = 'token' AND token_after > new_token
    THEN
      RETURN json_build_object('kind', 'refused', 'record', CASE WHEN has_record THEN shown_record(r) END);
    END IF;
    IF condition = 'token' THEN token_after := new_token; END IF;
    -- The row is locked, or it is not there. A row whose time is over may be locked, too.
    UPDATE records SET value = new_value, version = new_version, token = token_after, keep = new_keep,
      expires = now_us() + new_keep WHERE key = wanted AND (has_record OR expires <= now_us());
    IF FOUND THEN RETURN json_build_object('kind', 'written'); END IF;
    INSERT INTO records (key, token, keep, expires, version, value)
      VALUES (wanted, token_after, new_keep, now_us() + new_keep, new_version, new_value) ON CONFLICT DO NOTHING;
    IF FOUND THEN RETURN json_build_object('kind', 'written'); END IF;
  END LOOP;
  RAISE 'HOLDFAST HIDDEN ROW';
END $$;

-- A quotient rounded up; 0 if it is negative.
CREATE OR REPLACE FUNCTION div_up(a bigint, b bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT (greatest(a, 0) + b - 1) / b $$;

-- Takes from a meter, and replies 'remaining retryAfter fullIn'. All products fit into a bigint: a period times the sum of limit and burst is below 2^53.
CREATE OR REPLACE FUNCTION take_from_meter(
  wanted text, units bigint, units_back bigint, period bigint, burst bigint, lock_timeout_ms integer
) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
DECLARE
  m meters;
  has_row boolean;
  now_at bigint;
  since_at bigint;
  in_use bigint;
  periods bigint;
  returned bigint;
  retry_after bigint;
  full_in bigint;
  full_at bigint;
  reply text;
BEGIN
  PERFORM begin_call(lock_timeout_ms, false);
  FOR attempt IN 1 .. 100 LOOP
    SELECT * INTO m FROM meters WHERE key = wanted FOR UPDATE;
    has_row := FOUND;
    now_at := now_us();
    IF m.expires > now_at THEN
      -- Later than now: the clock was set back.
      since_at := least(m.since, now_at); in_use := m.used;
    ELSE since_at := now_at; in_use := 0; END IF;
    periods := (now_at - since_at) / period;
    since_at := since_at + periods * period;
    -- Compared by division, because the product of other numbers may be too large.
    IF periods > in_use / units_back THEN in_use := 0; ELSE in_use := in_use - periods * units_back; END IF;
    returned := (now_at - since_at) * units_back / period;
    -- Under other numbers, more than today's burst may have been taken.
    in_use := least(in_use, burst + returned);
    IF in_use * period <= (now_at - since_at) * units_back THEN
      since_at := now_at; in_use := 0; returned := 0;
    END IF;

    retry_after := greatest(0, div_up((in_use + units - burst) * period, units_back) - (now_at - since_at));
    IF retry_after = 0 THEN in_use := in_use + units; END IF;
    full_in := greatest(0, div_up(in_use * period, units_back) - (now_at - since_at));
    full_at := least(now_at + full_in, $MAX_TOKEN);
    reply := format('%s %s %s', burst - in_use + returned, retry_after, full_in);

    IF in_use = 0 THEN
      IF has_row THEN DELETE FROM meters WHERE key = wanted; END IF;
      RETURN reply;
    END IF;
    IF has_row THEN
      -- Most refused takes change nothing.
      IF (m.since, m.used, m.expires) IS DISTINCT FROM (since_at, in_use, full_at) THEN
        UPDATE meters SET since = since_at, used = in_use, expires = full_at WHERE key = wanted;
      END IF;
      RETURN reply;
    END IF;
    INSERT INTO meters (key, since, used, expires) VALUES (wanted, since_at, in_use, full_at) ON CONFLICT DO NOTHING;
    IF FOUND THEN RETURN reply; END IF;
  END LOOP;
  RAISE 'HOLDFAST HIDDEN ROW';
END $$;

-- Deletes what is over among the next `many` rows after `first`, or from the beginning if there are none. Returns the
-- key of the last of them.
CREATE OR REPLACE FUNCTION delete_expired(of_table text, first text, many integer, lock_timeout_ms integer)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
DECLARE
  page text := format('SELECT max(key) FROM (SELECT key FROM %I WHERE key > $1 ORDER BY key LIMIT $2) AS p', of_table);
  last text;
BEGIN
  PERFORM begin_call(lock_timeout_ms, false);
  EXECUTE page INTO last USING first, many;
  IF last IS NULL THEN
    first := '';
    EXECUTE page INTO last USING first, many;
  END IF;
  EXECUTE format('DELETE FROM %1$I WHERE key IN (
      SELECT key FROM %1$I WHERE key > $1 AND key <= $2 AND expires <= $3 ORDER BY key FOR UPDATE SKIP LOCKED)', of_table)
    USING first, last, now_us();
  RETURN coalesce(last, '');
END $$;

-- The rule of stores/rule.ts, for one name whose row is locked. Functions take the row as a value and return
-- it changed; save_name() writes it.

CREATE OR REPLACE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- PL/pgSQL runs PERFORM as a query, and an assignment as an expression, which is much faster: functions that every
-- step calls return something.

-- Grants, renewals and tickets are on disk before the reply. Releases and handovers need not be: after a crash the
-- former grant is back until it expires, with the queue behind it, and the clock is beyond the tokens that were
-- handed over. Two must be on disk: a handover whose token is ahead of the clock, see advance(), and the release of a
-- shared grant or of permits before a waiter, see release_name().
CREATE OR REPLACE FUNCTION set_commit(is_durable boolean) RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT CASE WHEN NOT is_durable THEN set_config('synchronous_commit', 'off', true)
    WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END
$$;

-- Under a stricter isolation level a step would read what was true when it began, not when its name was locked.
CREATE OR REPLACE FUNCTION begin_call(lock_timeout_ms integer, is_durable boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE setting text;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE 'HOLDFAST ISOLATION %', current_setting('transaction_isolation');
  END IF;
  setting := set_config('lock_timeout', lock_timeout_ms::text, true);
  RETURN set_commit(is_durable);
END $$;

-- Whether the waiter listens.
CREATE OR REPLACE FUNCTION notify_waiter(c claims, message text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT CASE WHEN c.channel IS NULL THEN false
    ELSE pg_notify(c.channel, message || ' ' || c.grant_id) IS NOT NULL END
$$;

CREATE OR REPLACE FUNCTION next_token(last bigint, now_at bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF greatest(last + 1, now_at) > $MAX_TOKEN THEN RAISE 'HOLDFAST LAST TOKEN'; END IF;
  RETURN greatest(last + 1, now_at);
END $$;

-- Whether the claim ends later than its ttl or atLeast from now: then the clock was set back.
CREATE OR REPLACE FUNCTION is_ahead(c claims, now_at bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS
$$ SELECT c.expires > now_at + c.ttl OR c.closed > now_at + c.at_least $$;

-- Ends a claim no later than its ttl from now. Its holder counts from an earlier moment, so has stopped by then.
CREATE OR REPLACE FUNCTION cut_short(INOUT c claims, now_at bigint) LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  c.expires := least(c.expires, now_at + c.ttl);
  c.closed := least(c.closed, now_at + c.at_least);
END $$;

-- Removes claims that are over, and grants tickets from the front of the queue while they fit. The first waiters
-- get the push `look` if a grant was made, or if the first holder ends sooner than ends_before. `caller` is the grantId
-- of the request: it gets a reply, and no message.
CREATE OR REPLACE FUNCTION advance(
  INOUT n names, now_at bigint, caller text, ends_before bigint,
  -- Permits of the grants in force; when the first of them ends; the place of the first ticket; the label of the first holder.
  OUT in_use bigint, OUT ends bigint, OUT first_ticket bigint, OUT first_holder text,
  -- The lowest token in force.
  OUT lowest bigint
) LANGUAGE plpgsql AS $$
DECLARE
  c claims;
  -- The end of a holder that no reply has reported to the waiters; the place of first_holder; the first place that stays.
  unknown_end bigint; holder_place bigint; kept bigint;
  tickets integer := 0;
  is_ticket boolean; c_ends bigint;
  is_told boolean; setting text;
BEGIN
  in_use := 0;
  c := n.held;
  IF is_ahead(c, now_at) THEN
    c := cut_short(c, now_at);
    n.held := c;
  END IF;
  IF c.token IS NOT NULL THEN
    c_ends := greatest(c.expires, c.closed);
    IF c_ends <= now_at THEN n.held := NULL;
    ELSE
      in_use := c.permits; ends := c_ends; first_holder := c.holder; holder_place := c.place;
      IF c.ended = 'no' AND c.expires > now_at THEN lowest := c.token; END IF;
    END IF;
  END IF;
  IF n.others = 0 THEN RETURN; END IF;

  FOR c IN SELECT * FROM claims WHERE name = n.name AND place >= n.first_place ORDER BY place LOOP
    IF is_ahead(c, now_at) THEN
      c := cut_short(c, now_at);
      n := save_claim(n, c);
    END IF;
    c_ends := greatest(c.expires, c.closed);
    is_ticket := c.token = 0;
    IF c_ends <= now_at THEN
      DELETE FROM claims WHERE name = c.name AND place = c.place;
      n.others := n.others - 1;
      IF is_ticket THEN n.waiting := n.waiting - 1; END IF;
      CONTINUE;
    END IF;
    IF is_ticket AND (tickets > 0 OR in_use + c.permits > n.capacity) THEN
      tickets := tickets + 1;
      IF tickets = 1 THEN
        first_ticket := c.place;
        IF ends < ends_before THEN unknown_end := ends; END IF;
      END IF;
      kept := least(kept, c.place);
      -- Waiters that would renew their tickets only after that end.
      IF c.ttl / $RENEWALS_PER_TTL > unknown_end - now_at AND c.grant_id <> caller THEN
        is_told := notify_waiter(c, 'look');
      END IF;
      EXIT WHEN unknown_end IS NULL OR tickets = $WAITERS_AT_EXPIRY;
      CONTINUE;
    END IF;
    IF is_ticket THEN
      n.last_token := next_token(n.last_token, now_at);
      IF n.last_token > now_at THEN setting := set_commit(true); END IF;
      c.token := n.last_token;
      c.floor := least(lowest, c.token);
      c.since := now_at;
      IF c.at_least > 0 THEN c.closed := now_at + c.at_least; END IF;
      c_ends := greatest(c.expires, c.closed);
      n.waiting := n.waiting - 1;
      IF n.held IS NULL THEN
        DELETE FROM claims WHERE name = c.name AND place = c.place;
        n.others := n.others - 1;
        n.held := c;
      ELSE
        UPDATE claims SET token = c.token, floor = c.floor, since = c.since, closed = c.closed
          WHERE name = c.name AND place = c.place;
        kept := least(kept, c.place);
      END IF;
      IF c.grant_id <> caller THEN
        is_told := notify_waiter(c, format('granted %s %s %s %s', c.token, c.floor, c.ttl, c.seq));
      END IF;
      unknown_end := least(unknown_end, c_ends);
    ELSE kept := least(kept, c.place);
    END IF;
    CONTINUE WHEN c.ended = 'revoked';
    in_use := in_use + c.permits;
    ends := least(ends, c_ends);
    IF holder_place IS NULL OR c.place < holder_place THEN
      first_holder := c.holder; holder_place := c.place;
    END IF;
    IF c.ended = 'no' AND c.expires > now_at THEN lowest := least(lowest, c.token); END IF;
  END LOOP;
  n.first_place := coalesce(kept, n.last_place + 1);
END $$;

-- Makes the rows that are missing, in the same order in every transaction, so that none deadlock.
CREATE OR REPLACE FUNCTION make_names(wanted text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO names (name) SELECT DISTINCT w COLLATE "C" FROM unnest(wanted) AS w ORDER BY 1
    ON CONFLICT DO NOTHING;
  -- A statement of its own: a row may have been deleted, and its token kept, while the one above waited for it. Only
  -- rows that this transaction has made (xmin): it would lock others in no order.
  IF FOUND THEN
    UPDATE names AS n SET last_token = d.last_token FROM deleted_names AS d
      WHERE n.name = ANY (wanted) AND n.last_token = 0 AND d.last_token > 0 AND n.xmin = pg_current_xact_id()::xid;
  END IF;
END $$;

-- Locks the rows of names in the same order in every transaction, and returns them. `skip`: only those that are not locked.
CREATE OR REPLACE FUNCTION lock_names(wanted text[], skip boolean) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
  PERFORM make_names(wanted);
  IF skip THEN
    RETURN ARRAY(SELECT name FROM names WHERE name = ANY (wanted) ORDER BY name FOR UPDATE SKIP LOCKED);
  END IF;
  RETURN ARRAY(SELECT name FROM names WHERE name = ANY (wanted) ORDER BY name FOR UPDATE);
END $$;

-- The row of a name, locked from now on. It is made if it is missing and `make` says so.
CREATE OR REPLACE FUNCTION open_name(wanted text, make boolean) RETURNS names LANGUAGE plpgsql AS $$
DECLARE n names;
BEGIN
  -- Another transaction may delete the row again, but not that often.
  FOR attempt IN 1 .. 100 LOOP
    SELECT * INTO n FROM names WHERE name = wanted FOR UPDATE;
    IF FOUND OR NOT make THEN RETURN n; END IF;
    PERFORM make_names(ARRAY[wanted]);
  END LOOP;
  RAISE 'HOLDFAST HIDDEN ROW';
END $$;

-- Whether the row has changed.
CREATE OR REPLACE FUNCTION save_name(n names, was names, now_at bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF n.held IS NULL AND n.others = 0 AND ((was.held).token IS NOT NULL OR was.others > 0) THEN n.freed := now_at; END IF;
  IF n IS NOT DISTINCT FROM was THEN RETURN false; END IF;
  UPDATE names SET last_token = n.last_token, last_place = n.last_place, first_place = n.first_place,
    others = n.others, waiting = n.waiting, capacity = n.capacity, freed = n.freed, held = n.held
    WHERE name = n.name;
  RETURN true;
END $$;

CREATE OR REPLACE FUNCTION remove_expired_tickets(INOUT n names, now_at bigint) LANGUAGE plpgsql AS $$
DECLARE removed integer;
BEGIN
  DELETE FROM claims WHERE name = n.name AND token = 0 AND expires <= now_at;
  GET DIAGNOSTICS removed = ROW_COUNT;
  n.others := n.others - removed;
  n.waiting := n.waiting - removed;
END $$;

-- Writes a changed claim back to its place.
CREATE OR REPLACE FUNCTION save_claim(INOUT n names, c claims) LANGUAGE plpgsql AS $$
BEGIN
  IF (n.held).place = c.place THEN n.held := c;
  ELSE
    UPDATE claims SET channel = c.channel, seq = c.seq, ttl = c.ttl, since = c.since, expires = c.expires,
      closed = c.closed, ended = c.ended, ended_by = c.ended_by, ended_why = c.ended_why
      WHERE name = c.name AND place = c.place;
  END IF;
END $$;

CREATE OR REPLACE FUNCTION remove_claim(INOUT n names, c claims) LANGUAGE plpgsql AS $$
BEGIN
  IF (n.held).place = c.place THEN n.held := NULL;
  ELSE
    DELETE FROM claims WHERE name = c.name AND place = c.place;
    n.others := n.others - 1;
    IF c.token = 0 THEN n.waiting := n.waiting - 1; END IF;
  END IF;
END $$;

-- The claim of a grantId that has not ended. An expired ticket is removed here, because advance() stops at the
-- first living one.
CREATE OR REPLACE FUNCTION find_claim(INOUT n names, id text, now_at bigint, OUT c claims) LANGUAGE plpgsql AS $$
BEGIN
  c := n.held;
  IF c.grant_id = id AND c.ended = 'no' THEN RETURN; END IF;
  c := NULL;
  IF n.others > 0 THEN
    SELECT * INTO c FROM claims WHERE name = n.name AND grant_id = id AND ended = 'no';
    IF c.token = 0 AND c.expires <= now_at THEN
      n := remove_claim(n, c);
      c := NULL;
    END IF;
  END IF;
END $$;

CREATE OR REPLACE FUNCTION add_claim(INOUT n names, c claims) LANGUAGE plpgsql AS $$
BEGIN
  IF c.token > 0 AND c.ended <> 'revoked' AND n.held IS NULL THEN n.held := c;
  ELSE
    INSERT INTO claims SELECT c.*;
    n.others := n.others + 1;
    IF c.token = 0 THEN n.waiting := n.waiting + 1; END IF;
    n.first_place := CASE n.others WHEN 1 THEN c.place ELSE least(n.first_place, c.place) END;
  END IF;
END $$;

-- Extends a claim, unless a later request of the same claim has arrived already, perhaps with a shorter ttl. The
-- first waiters get the push `look` if the grant ends sooner than before.
CREATE OR REPLACE FUNCTION extend(
  INOUT n names, INOUT c claims, now_at bigint, new_seq bigint, new_ttl bigint, new_channel text, ends bigint
) LANGUAGE plpgsql AS $$
DECLARE
  before bigint := c.expires;
  s record;
BEGIN
  c.channel := new_channel;
  IF new_seq >= c.seq THEN
    c.seq := new_seq; c.ttl := new_ttl; c.expires := now_at + new_ttl;
  END IF;
  n := save_claim(n, c);
  IF c.token > 0 AND c.expires < before AND n.waiting > 0 THEN
    s := advance(n, now_at, c.grant_id, ends);
    n := s.n;
  END IF;
END $$;

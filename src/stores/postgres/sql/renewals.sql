CREATE OR REPLACE FUNCTION renew_name(
  wanted text, id text, new_seq bigint, new_ttl bigint, new_channel text, batch_now bigint
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  n names := open_name(wanted, false);
  opened names := n;
  now_at bigint := coalesce(batch_now, now_us());
  s record;
  f record;
  e record;
  mine claims;
  reply json;
  is_saved boolean;
BEGIN
  IF n.name IS NULL THEN RETURN lost_reply(n, id); END IF;
  s := advance(n, now_at, id, NULL);
  n := s.n;
  f := find_claim(n, id, now_at);
  n := f.n; mine := f.c;
  IF mine.token IS NULL OR mine.expires <= now_at THEN reply := lost_reply(n, id);
  ELSE
    e := extend(n, mine, now_at, new_seq, new_ttl, new_channel, s.ends);
      n := e.n; mine := e.c;
    IF mine.token > 0 THEN reply := json_build_object('kind', 'granted', 'grant', grant_reply(mine));
    ELSE reply := queued_reply(mine, s.first_ticket, s.ends, now_at, s.first_holder);
    END IF;
  END IF;
  is_saved := save_name(n, opened, now_at);
  RETURN reply;
END $$;

-- Renews grants and tickets. A reply is null if another transaction has locked the name, as in requests(). It is the
-- token alone if the name has no other claims.
CREATE OR REPLACE FUNCTION renewals(
  wanted text[], ids text[], seqs bigint[], ttls bigint[], new_channel text, lock_timeout_ms integer, waits boolean
) RETURNS text[] LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
DECLARE
  -- Positions in the arrays: a join of long arrays by their names compares each name with each.
  locked bigint[];
  now_at bigint;
  r record;
  replies text[] := array_fill(NULL::text, ARRAY[cardinality(wanted)]);
  setting text;
BEGIN
  setting := begin_call(lock_timeout_ms, true);
  IF cardinality(wanted) = 1 THEN
    RETURN ARRAY[renew_name(wanted[1], ids[1], seqs[1], ttls[1], new_channel, NULL)];
  END IF;
  IF waits THEN PERFORM 1 FROM names WHERE name = ANY (wanted) ORDER BY name FOR UPDATE; END IF;
  locked := ARRAY(
    SELECT w.i FROM unnest(wanted) WITH ORDINALITY AS w(name, i) JOIN names AS n ON n.name = w.name
      ORDER BY n.name FOR UPDATE OF n SKIP LOCKED);
  now_at := now_us();
  -- The only grants of their names, as nearly all are; two renewals of one name go in their order, below.
  FOR r IN
    UPDATE names AS n SET held.seq = seqs[once.i], held.ttl = ttls[once.i], held.expires = now_at + ttls[once.i]
      FROM (SELECT min(i) AS i FROM unnest(locked) AS i GROUP BY wanted[i] HAVING count(*) = 1) AS once
      WHERE n.name = wanted[once.i] AND n.others = 0 AND (n.held).grant_id = ids[once.i] AND (n.held).ended = 'no'
        AND (n.held).expires > now_at AND (n.held).seq <= seqs[once.i] AND (n.held).floor = (n.held).token
      RETURNING once.i, (n.held).token
  LOOP
    replies[r.i] := r.token;
  END LOOP;
  FOR r IN
    SELECT w.i, n.name IS NULL AS is_gone
      FROM unnest(wanted) WITH ORDINALITY AS w(name, i) LEFT JOIN names AS n ON n.name = w.name
      WHERE replies[w.i] IS NULL AND (n.name IS NULL OR w.i = ANY (locked)) ORDER BY w.i
  LOOP
    -- A row that was missing may be there by now, and locked: waiting for it here could end in a deadlock.
    replies[r.i] := CASE WHEN r.is_gone THEN lost_reply(NULL, ids[r.i])::text
      ELSE renew_name(wanted[r.i], ids[r.i], seqs[r.i], ttls[r.i], new_channel, now_at) END;
  END LOOP;
  RETURN replies;
END $$;

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
  PERFORM save_name(n, opened, now_at);
  RETURN reply;
END $$;

-- Renews grants and tickets. A reply is null if another transaction has locked the name, as in requests().
CREATE OR REPLACE FUNCTION renewals(
  wanted text[], ids text[], seqs bigint[], ttls bigint[], new_channel text, lock_timeout_ms integer, waits boolean
) RETURNS text[] LANGUAGE plpgsql SET search_path = pg_catalog, $SCHEMA, pg_temp AS $$
DECLARE
  locked text[];
  now_at bigint;
  r record;
  replies text[] := array_fill(NULL::text, ARRAY[cardinality(wanted)]);
BEGIN
  PERFORM check_call(lock_timeout_ms);
  PERFORM set_commit(true);
  IF cardinality(wanted) = 1 THEN
    RETURN ARRAY[renew_name(wanted[1], ids[1], seqs[1], ttls[1], new_channel, NULL)];
  END IF;
  IF waits THEN PERFORM 1 FROM names WHERE name = ANY (wanted) ORDER BY name FOR UPDATE; END IF;
  locked := ARRAY(SELECT name FROM names WHERE name = ANY (wanted) ORDER BY name FOR UPDATE SKIP LOCKED);
  now_at := now_us();
  -- The only grants of their names, as nearly all are; two renewals of one name go in their order, below.
  FOR r IN
    UPDATE names AS n SET held.seq = w.seq, held.ttl = w.ttl, held.expires = now_at + w.ttl
      FROM unnest(wanted, ids, seqs, ttls) WITH ORDINALITY AS w(name, id, seq, ttl, i)
        JOIN unnest(locked) AS l(name) ON l.name = w.name
        JOIN (SELECT o FROM unnest(wanted) AS o GROUP BY o HAVING count(*) = 1) AS once ON once.o = w.name
      WHERE n.name = w.name AND n.others = 0 AND (n.held).grant_id = w.id AND (n.held).ended = 'no'
        AND (n.held).expires > now_at AND w.seq >= (n.held).seq
      RETURNING w.i, n.held AS c
  LOOP
    replies[r.i] := json_build_object('kind', 'granted', 'grant', grant_reply(r.c));
  END LOOP;
  FOR r IN
    SELECT w.*, l.name IS NOT NULL OR n.name IS NULL AS is_free
      FROM unnest(wanted, ids, seqs, ttls) WITH ORDINALITY AS w(name, id, seq, ttl, i)
        LEFT JOIN unnest(locked) AS l(name) ON l.name = w.name
        LEFT JOIN names AS n ON n.name = w.name
      WHERE replies[w.i] IS NULL ORDER BY w.i
  LOOP
    IF r.is_free THEN replies[r.i] := renew_name(r.name, r.id, r.seq, r.ttl, new_channel, now_at); END IF;
  END LOOP;
  RETURN replies;
END $$;

-- Times are in microseconds since 1970, by the server's clock.

-- Columns that a step changes stand together: the log has the part of a row from its first changed byte to its last.

-- Claims on a name: tickets, and all grants but the first. No index holds anything that a renewal changes,
-- so renewals stay HOT updates.
CREATE TABLE IF NOT EXISTS claims (
  name text COLLATE "C" NOT NULL,
  permits bigint NOT NULL,
  holder text NOT NULL,
  -- Where its waiter listens; null: it polls.
  channel text,
  -- 'no', 'released' (it only keeps the name closed) or 'revoked'.
  ended text NOT NULL,
  ended_by text NOT NULL,
  ended_why text NOT NULL,
  ttl bigint NOT NULL,
  at_least bigint NOT NULL,
  -- Until when atLeast keeps the name closed, also after the lease; 0: not at all.
  closed bigint NOT NULL,
  grant_id text COLLATE "C" NOT NULL,
  -- The order of all claims on the name.
  place bigint NOT NULL,
  -- 0: a ticket.
  token bigint NOT NULL,
  floor bigint NOT NULL,
  -- When it was queued, granted or revoked, whichever came last.
  since bigint NOT NULL,
  -- The highest number of a request that has arrived for this grantId.
  seq bigint NOT NULL,
  expires bigint NOT NULL,
  PRIMARY KEY (name, place)
) WITH (fillfactor = 70);

CREATE INDEX IF NOT EXISTS claims_by_grant ON claims (name, grant_id);

-- The row of a name is its lock: a step locks the row before it reads anything else of the name.
CREATE TABLE IF NOT EXISTS names (
  name text COLLATE "C" PRIMARY KEY,
  -- No row of claims has a lower place.
  first_place bigint NOT NULL DEFAULT 0,
  -- Rows of claims: all, and tickets.
  others integer NOT NULL DEFAULT 0,
  waiting integer NOT NULL DEFAULT 0,
  capacity bigint NOT NULL DEFAULT 0,
  -- One of its grants, in nearly every case the only one; never a revoked one. When it is released, it may stay with
  -- expires and closed at 0: then the log has only a few bytes of this release and of the next grant.
  held claims,
  -- When the name was last released.
  freed bigint NOT NULL DEFAULT 0,
  last_place bigint NOT NULL DEFAULT 0,
  last_token bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);

-- The highest token of all names whose rows were deleted: a new name begins above it.
CREATE TABLE IF NOT EXISTS deleted_names (
  id boolean PRIMARY KEY DEFAULT true CHECK (id),
  last_token bigint NOT NULL,
  -- Up to which name delete_free_names() has looked.
  checked_to text COLLATE "C" NOT NULL DEFAULT ''
);
INSERT INTO deleted_names VALUES (true, 0) ON CONFLICT DO NOTHING;

/*
 * A lease, and a fence at the resource that the lease protects.
 *
 * Three clients take the lease one after another, change a number (read, add one, write) and release.
 * A client may pause between any two steps, also for longer than its lease. Checked, by the names for
 * -DCHECK:
 *   NO_UPDATE_IS_LOST        nobody has written since the read that a write rests on;
 *   NO_STALE_TOKEN           the resource accepts no token below the highest floor that it has seen;
 *   HOLDER_IS_ACCEPTED       the resource never refuses a client whose lease is good;
 *   ONE_HOLDER               the leases of two clients are never good at the same time.
 *
 * A lease is good until the client's own deadline. Only ONE_HOLDER and HOLDER_IS_ACCEPTED rest on
 * time; the other two hold even if the rules for ONE_HOLDER are broken.
 *
 * Replies to claims may be lost; the client then asks again. Grants are exclusive, so the floor of a
 * grant is its token. Not in the model: clock drift, waiting clients, shared grants and permits,
 * stores that lose data.
 *
 * -DWITHOUT=RULE leaves out one rule, and -DCHECK=NAME checks only what then breaks.
 */

/* Rules, and the check that each one is for. */
#define GUARD_REFUSES_LOWER    1 /* NO_UPDATE_IS_LOST NO_STALE_TOKEN */
#define ENTER_BEFORE_READ      2 /* NO_UPDATE_IS_LOST */
#define GUARD_WITH_WRITE       3 /* NO_UPDATE_IS_LOST */
#define TOKENS_RISE            4 /* NO_UPDATE_IS_LOST HOLDER_IS_ACCEPTED */
#define DEADLINE_FROM_SEND     5 /* ONE_HOLDER */
#define ASKING_AGAIN_EXTENDS   6 /* ONE_HOLDER */
#define RENEWAL_NEEDS_HOLDER   7 /* ONE_HOLDER */
#define RELEASE_NEEDS_HOLDER   8 /* ONE_HOLDER */

#ifndef WITHOUT
#define WITHOUT 0
#endif
#define KEEPS(rule) (WITHOUT != rule)

#define NO_UPDATE_IS_LOST   1
#define NO_STALE_TOKEN      2
#define HOLDER_IS_ACCEPTED  3
#define ONE_HOLDER          4
#ifdef CHECK
#define CHECKED(check) (CHECK == check)
#else
#define CHECKED(check) true
#endif

#define CLIENTS 3
#ifndef LAST_TICK
#define LAST_TICK 6
#endif
#define TTL 2
#define NONE 255

byte now;

/* The store. */
byte holder = NONE, expiresAt, last;

/* The resource. */
byte value, highest;

/* For the checks. */
byte goodUntil[CLIENTS]; /* each client's deadline */
byte highestShown;       /* the highest floor that a client has shown to the resource */
#define GOOD_LEASES ((goodUntil[0] > 0) + (goodUntil[1] > 0) + (goodUntil[2] > 0))

/* Clients are interchangeable: they ask first in the order of their index. */
byte asked;

#define MAX(a, b) ((a) > (b) -> (a) : (b))

inline check(name, holds) {
  if
  :: CHECKED(name) -> assert(holds)
  :: else
  fi
}

/* Each request reaches the store when it is sent: a late one only makes the deadline earlier. */
inline claim() {
  d_step {
    (holder == NONE && me <= asked) || holder == me ->
    sentAt = now;
    asked = MAX(asked, me + 1);
    if
    :: holder == me ->
       expiresAt = (KEEPS(ASKING_AGAIN_EXTENDS) -> now + TTL : expiresAt);
       printf("%d: client %d asks again; its grant expires at %d\n", now, me, expiresAt)
    :: else ->
       last++;
       token = last;
       holder = me;
       expiresAt = now + TTL;
       printf("%d: client %d gets token %d; its grant expires at %d\n", now, me, token, expiresAt)
    fi
  }
}

inline renew() {
  d_step {
    holder == me || !KEEPS(RENEWAL_NEEDS_HOLDER) ->
    sentAt = now;
    expiresAt = now + TTL;
    printf("%d: client %d renews; the grant expires at %d\n", now, me, expiresAt)
  }
}

inline release() {
  d_step {
    printf("%d: client %d releases\n", now, me);
    if
    :: holder == me || !KEEPS(RELEASE_NEEDS_HOLDER) ->
       holder = NONE;
       expiresAt = 0
    :: else
    fi;
    token = 0;
    seen = 0
  }
}

inline receiveYes() {
  d_step {
    goodUntil[me] = (KEEPS(DEADLINE_FROM_SEND) -> sentAt : now) + TTL;
    goodUntil[me] = (goodUntil[me] > now -> goodUntil[me] : 0);
    sentAt = 0;
    printf("%d: client %d has a lease until %d\n", now, me, goodUntil[me]);
    check(ONE_HOLDER, !goodUntil[me] || GOOD_LEASES == 1)
  }
}

/* The part that enter and guard share. */
inline showToken() {
  accepted = token >= highest || !KEEPS(GUARD_REFUSES_LOWER);
  printf("%d: client %d shows token %d after %d: %d\n", now, me, token, highest, accepted);
  check(HOLDER_IS_ACCEPTED, accepted || !goodUntil[me]);
  check(NO_STALE_TOKEN, !accepted || token >= highestShown);
  highest = (accepted -> MAX(highest, token) : highest);
  highestShown = MAX(highestShown, token)
}

inline writeNext() {
  printf("%d: client %d writes %d over %d\n", now, me, seen + 1, value);
  check(NO_UPDATE_IS_LOST, value == seen);
  value = seen + 1
}

proctype Client(byte me) {
  byte sentAt, token, seen;
  bool accepted = true;

  do
  :: claim();
     if
     :: receiveYes();
        break
     :: true /* The reply is lost. */
     fi
  od;

  if
  :: KEEPS(ENTER_BEFORE_READ) ->
     d_step { showToken() }
  :: else
  fi;

  if
  :: accepted ->
     seen = value;
     do
     :: renew();
        receiveYes()
     :: break
     od;
     if
     :: KEEPS(GUARD_WITH_WRITE) ->
        d_step {
          showToken();
          if
          :: accepted -> writeNext()
          :: else
          fi
        }
     :: else ->
        d_step { showToken() };
        if
        :: accepted -> d_step { writeNext() }
        :: else
        fi
     fi
  :: else
  fi;

  goodUntil[me] = 0;
  release()
}

/* A tick may come between any two steps. A deadline that has passed is set to 0: fewer states. */
inline expire(client) {
  goodUntil[client] = (goodUntil[client] > now -> goodUntil[client] : 0)
}
proctype Clock() {
end:
  do
  :: d_step {
       now < LAST_TICK ->
       now++;
       expire(0);
       expire(1);
       expire(2);
       if
       :: expiresAt <= now ->
          holder = NONE;
          expiresAt = 0
       :: else
       fi
     }
  :: d_step {
       !KEEPS(TOKENS_RISE) && last ->
       last = 0;
       printf("%d: the store forgets its last token\n", now)
     }
  od
}

init {
  atomic {
    byte client;
    for (client : 0 .. CLIENTS - 1) {
      run Client(client)
    }
    run Clock()
  }
}

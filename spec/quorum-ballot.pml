/*
 * The ballot of the fenced quorum: how clients agree with three independent nodes on a token.
 *
 * The steps of all grants are tried in every order. Checked, by the names for -DCHECK:
 *   TOKENS_DIFFER        no two grants have the same token;
 *   TOKENS_RISE          if A was decided before B was asked, A's token is lower;
 *   OLD_GRANTS_END       a renewal that is asked after a higher token was decided gets no majority.
 * And with -DNO_EXPIRY, where only a release ends a record:
 *   ONE_HOLDER           no grant is decided while another is held;
 *   DECISIONS_RISE       if A was decided before B was decided, A's token is lower;
 *   RELEASED_STAYS_FREE  a node that has released a grant does not fill it in again.
 *
 * Messages: once a request was sent, a node carries it out at any later time, any number of times.
 * So requests may be lost, late, reordered and asked again. A reply reaches the client at once, but the
 * client may act as if any of its replies were still missing.
 *
 * Expiry: a record may have expired whenever a request comes. So a claim may replace any record, and
 * neither expiry nor release needs a step of its own.
 *
 * Numbers: a claim records any number above m, whatever t and the node's clock are. Other names with
 * the same tag raise m and c; to this name that looks like a higher number or a refusal. Raises and
 * renewals may be refused at any time, without a step, because a refusal changes nothing. For the same
 * reason a release may raise m and c. It raises both, to the token + 1; here only c, which shows more.
 *
 * Not in the model: nodes that lose their data, the marker, and time (deadlines, drift, clocks).
 *
 * -DWITHOUT=RULE leaves out one rule, and -DCHECK=NAME checks only what then breaks.
 */

/* Rules, with their numbers in the design of the quorum, and the check that each one is for. */
#define LAST_NEVER_EXPIRES    1  /* data    TOKENS_RISE */
#define CLAIM_IS_ABOVE_LAST   2  /* rule 1  TOKENS_RISE */
#define CLAIM_RAISES_M        3  /* rule 1  TOKENS_RISE */
#define CLAIM_RAISES_C        4  /* rule 1  OLD_GRANTS_END */
#define RAISE_NEEDS_HOLDER    5  /* rule 2  TOKENS_DIFFER */
#define RAISE_GOES_UP         6  /* rule 2  TOKENS_RISE */
#define RAISE_RAISES_M        7  /* rule 2  TOKENS_RISE */
#define RAISE_RAISES_C        8  /* rule 2  OLD_GRANTS_END */
#define RENEWAL_CHECKS_BASE   9  /* rule 3  OLD_GRANTS_END */
#define FILL_IN_CHECKS_C      10 /* rule 3  OLD_GRANTS_END */
#define RELEASE_NEEDS_HOLDER  11 /* rule 4  ONE_HOLDER */
#define RELEASE_RAISES_C      12 /* rule 4  RELEASED_STAYS_FREE */
#define GRANT_ID_IS_FRESH     13 /* rule 5  TOKENS_DIFFER */
#define ONE_NUMBER_DECIDES    14 /* rule 5  TOKENS_DIFFER */
#define FILL_IN_IS_NO_VOTE    15 /* rule 6  TOKENS_DIFFER */

#ifndef WITHOUT
#define WITHOUT 0
#endif
#define KEEPS(rule) (WITHOUT != rule)

#define TOKENS_DIFFER        1
#define TOKENS_RISE          2
#define OLD_GRANTS_END       3
#define ONE_HOLDER           4
#define DECISIONS_RISE       5
#define RELEASED_STAYS_FREE  6

#ifdef NO_EXPIRY
#define EXPIRY false
#define CHECKED(check) true
#else
#define EXPIRY true
#define CHECKED(check) (check <= OLD_GRANTS_END)
#endif
#ifdef CHECK
#undef CHECKED
#define CHECKED(check) (CHECK == check)
#endif

#ifndef GRANTS
#define GRANTS 3
#endif
#ifndef NUMBERS
#define NUMBERS 3 /* a claim that needs a higher number is refused */
#endif
#define NODES 3
#define NONE 255

/* Nodes: the record of the name, {g, num, base}, and the tag's {m, c}. */
byte holder[NODES] = NONE, num[NODES], base[NODES];
byte m[NODES], c[NODES];

/* Clients, by grant. */
byte recorded[GRANTS * NODES]; /* a bit for each number that the node has recorded for the grant */
byte raiseTo[GRANTS];
byte token[GRANTS];            /* 0 until the grant is decided */
bool ended[GRANTS];

/* For the checks. */
byte tokens;                   /* a bit for each token of a decided grant */
byte highestToken;
byte highestWhenAsked[GRANTS];
byte outdatedYes[GRANTS];      /* a bit for each node that renewed the grant after a higher token */
byte releasedOn[GRANTS];       /* a bit for each node that has carried out the release of the grant */
byte held;

/* Grants are interchangeable, and nodes are: each is first used in the order of its index. */
byte grantsAsked, nodesUsed;

#define BIT(i) (1 << (i))
#define ONES(bits) ((((bits) >> 0) & 1) + (((bits) >> 1) & 1) + (((bits) >> 2) & 1))
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define RECORDED(n) recorded[g * NODES + n]
#define VOTES(x) (((RECORDED(0) >> x) & 1) + ((RECORDED(1) >> x) & 1) + ((RECORDED(2) >> x) & 1))
#define MAY_BE_FREE(n) (EXPIRY || holder[n] == NONE)
/* Without the rule, the first two grants are two ballots of one client, one after the other. */
#define GRANT_ID (KEEPS(GRANT_ID_IS_FRESH) || g != 1 -> g : 0)
#define MAY_DECIDE (KEEPS(GRANT_ID_IS_FRESH) || g != 0 || grantsAsked == 1)

inline check(name, holds) {
  if
  :: CHECKED(name) -> assert(holds)
  :: else
  fi
}

inline ask() {
  if
  :: g == grantsAsked ->
     grantsAsked++;
     highestWhenAsked[g] = highestToken
  :: else
  fi
}

/* Votes that no longer count are not kept: fewer states. */
inline vote(n, x) {
  if
  :: token[g] || ended[g] || (raiseTo[g] && raiseTo[g] != x)
  :: else -> RECORDED(n) = RECORDED(n) | BIT(x)
  fi
}
inline keepVotes(bits) {
  RECORDED(0) = RECORDED(0) & (bits);
  RECORDED(1) = RECORDED(1) & (bits);
  RECORDED(2) = RECORDED(2) & (bits)
}

/* Rule 1: the lock is free. */
inline claim(n, x) {
  d_step {
    g <= grantsAsked && n <= nodesUsed && MAY_BE_FREE(n) &&
    (x > m[n] || !KEEPS(CLAIM_IS_ABOVE_LAST)) ->
    printf("grant %d: node %d records number %d\n", g, n, x);
    ask();
    nodesUsed = MAX(nodesUsed, n + 1);
    holder[n] = GRANT_ID;
    base[n] = m[n];
    num[n] = x;
    m[n] = (KEEPS(CLAIM_RAISES_M) -> MAX(m[n], x) : m[n]);
    c[n] = (KEEPS(CLAIM_RAISES_C) -> MAX(c[n], x) : c[n]);
    vote(n, x)
  }
}

/* Rule 1: the grant holds the lock. */
inline claimAgain(n) {
  d_step {
    g <= grantsAsked && holder[n] == GRANT_ID && !(RECORDED(n) & BIT(num[n])) && !token[g] ->
    printf("grant %d: node %d still has number %d\n", g, n, num[n]);
    ask();
    vote(n, num[n])
  }
}

/* Rule 2. */
inline raise(n) {
  d_step {
    raiseTo[g] && (holder[n] == GRANT_ID || !KEEPS(RAISE_NEEDS_HOLDER)) &&
    (raiseTo[g] > num[n] || (!KEEPS(RAISE_GOES_UP) && raiseTo[g] != num[n])) ->
    printf("grant %d: node %d raises number %d to %d\n", g, n, num[n], raiseTo[g]);
    num[n] = raiseTo[g];
    m[n] = (KEEPS(RAISE_RAISES_M) -> MAX(m[n], raiseTo[g]) : m[n]);
    c[n] = (KEEPS(RAISE_RAISES_C) -> MAX(c[n], raiseTo[g]) : c[n]);
    vote(n, raiseTo[g])
  }
}

/* Rule 3: the grant holds the lock. A renewal extends the record, which has no expiry here. */
inline renew(n) {
  d_step {
    token[g] && token[g] < highestToken && holder[n] == GRANT_ID && !(outdatedYes[g] & BIT(n)) &&
    (base[n] <= token[g] || !KEEPS(RENEWAL_CHECKS_BASE)) ->
    printf("grant %d: node %d renews it after token %d\n", g, n, highestToken);
    outdatedYes[g] = outdatedYes[g] | BIT(n);
    check(OLD_GRANTS_END, ONES(outdatedYes[g]) <= NODES / 2)
  }
}

/* Rule 3: the lock is free. Without rule 6, a client also fills in what it has not decided. */
inline fillIn(n, x) {
  d_step {
    (token[g] == x || (!KEEPS(FILL_IN_IS_NO_VOTE) && !token[g] && VOTES(x))) &&
    holder[n] != GRANT_ID && MAY_BE_FREE(n) && (c[n] <= x || !KEEPS(FILL_IN_CHECKS_C)) ->
    printf("grant %d: node %d fills in number %d\n", g, n, x);
    check(RELEASED_STAYS_FREE, !(releasedOn[g] & BIT(n)));
    holder[n] = GRANT_ID;
    num[n] = x;
    base[n] = x;
    m[n] = MAX(m[n], x);
    vote(n, x)
  }
}

#define DELETES(n) \
  (holder[n] != NONE && (holder[n] == GRANT_ID || !KEEPS(RELEASE_NEEDS_HOLDER)))

/* Rule 4. The client ends first; its earlier requests may still be carried out. */
inline endGrant() {
  d_step {
    !EXPIRY && g < grantsAsked && !ended[g] ->
    printf("grant %d: ends\n", g);
    ended[g] = true;
    held = held - (token[g] > 0);
    keepVotes(0)
  }
}
inline release(n) {
  d_step {
    ended[g] && ((token[g] && !(releasedOn[g] & BIT(n))) || DELETES(n)) ->
    printf("grant %d: node %d releases it\n", g, n);
    c[n] = (token[g] && KEEPS(RELEASE_RAISES_C) -> MAX(c[n], token[g] + 1) : c[n]);
    releasedOn[g] = releasedOn[g] | (token[g] -> BIT(n) : 0);
    if
    :: DELETES(n) ->
       printf("grant %d: node %d deletes the record of grant %d\n", g, n, holder[n]);
       holder[n] = NONE;
       num[n] = 0;
       base[n] = 0
    :: else
    fi
  }
}

/* Rule 5: only x counts from now on. x is the highest number among the replies that have arrived. */
inline startRaise(x) {
  d_step {
    !raiseTo[g] && !token[g] && VOTES(x) ->
    printf("grant %d: starts to raise to %d\n", g, x);
    raiseTo[g] = x;
    keepVotes(BIT(x))
  }
}

/* Without the rule, a majority that recorded different numbers decides the highest of them. */
#define IS_HIGHEST(x) ((RECORDED(0) | RECORDED(1) | RECORDED(2)) >> x == 1)
#define ANSWERED ((RECORDED(0) > 0) + (RECORDED(1) > 0) + (RECORDED(2) > 0))

/* Rule 5. */
inline decide(x) {
  d_step {
    !token[g] && MAY_DECIDE && (VOTES(x) > NODES / 2 ||
    (!KEEPS(ONE_NUMBER_DECIDES) && IS_HIGHEST(x) && ANSWERED > NODES / 2)) ->
    printf("grant %d: decided with token %d\n", g, x);
    check(TOKENS_DIFFER, !(tokens & BIT(x)));
    check(TOKENS_RISE, x > highestWhenAsked[g]);
    check(ONE_HOLDER, held == 0);
    check(DECISIONS_RISE, x > highestToken);
    token[g] = x;
    tokens = tokens | BIT(x);
    highestToken = MAX(highestToken, x);
    held++;
    highestWhenAsked[g] = 0;
    keepVotes(0)
  }
}

inline expireLast(n) {
  d_step {
    !KEEPS(LAST_NEVER_EXPIRES) && m[n] ->
    printf("node %d: last expires\n", n);
    m[n] = 0;
    c[n] = 0
  }
}

#define EACH_NODE(step) :: step(0) :: step(1) :: step(2)
#define EACH_NODE_WITH(step, x) :: step(0, x) :: step(1, x) :: step(2, x)
#define EACH_NODE_WITH_1_OR_2(step) EACH_NODE_WITH(step, 1) EACH_NODE_WITH(step, 2)
#if NUMBERS == 2
#define EACH_NUMBER(step) :: step(1) :: step(2)
#define EACH_NODE_AND_NUMBER(step) EACH_NODE_WITH_1_OR_2(step)
#elif NUMBERS == 3
#define EACH_NUMBER(step) :: step(1) :: step(2) :: step(3)
#define EACH_NODE_AND_NUMBER(step) EACH_NODE_WITH_1_OR_2(step) EACH_NODE_WITH(step, 3)
#elif NUMBERS == 4
#define EACH_NUMBER(step) :: step(1) :: step(2) :: step(3) :: step(4)
#define EACH_NODE_AND_NUMBER(step) \
  EACH_NODE_WITH_1_OR_2(step) EACH_NODE_WITH(step, 3) EACH_NODE_WITH(step, 4)
#endif

proctype Grant(byte g) {
end:
  do
  EACH_NODE_AND_NUMBER(claim)
  EACH_NODE(claimAgain)
  EACH_NUMBER(startRaise)
  EACH_NODE(raise)
  EACH_NUMBER(decide)
  EACH_NODE(renew)
  EACH_NODE_AND_NUMBER(fillIn)
  :: endGrant()
  EACH_NODE(release)
  EACH_NODE(expireLast)
  od
}

init {
  atomic {
    byte g;
    for (g : 0 .. GRANTS - 1) {
      run Grant(g)
    }
  }
}

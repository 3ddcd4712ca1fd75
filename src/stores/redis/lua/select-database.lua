-- Put before a script, which then runs in this database whichever the connection has selected, or fails.
redis.call('SELECT', DATABASE)

// Buys the last item of a shop under a lease; told by its arguments whether to use the fence.
// Prints what it has read, waits for a line on stdin, and then writes.
import { once } from "node:events";
import { connect } from "holdfast";
import { postgresFence } from "holdfast/fence/postgres";
import pg from "pg";

const [url, buyer, kind] = process.argv.slice(2);
const pool = new pg.Pool({ connectionString: url });
const fence = kind === "fenced" ? postgresFence(pool) : undefined;
const locks = await connect(url, { ttl: "1s" });

async function buy(lease) {
  const { rows } = await pool.query("SELECT count FROM stock WHERE item = 'hat'");
  console.log(`read ${rows[0].count}`);
  await once(process.stdin, "data");
  if (rows[0].count === 0) return "sold out";
  const tx = await pool.connect();
  try {
    await tx.query("BEGIN");
    await fence?.guard(tx, "stock:hat", lease);
    await tx.query("UPDATE stock SET count = $1 WHERE item = 'hat'", [rows[0].count - 1]);
    await tx.query("INSERT INTO orders VALUES ($1)", [buyer]);
    await tx.query("COMMIT");
    return "bought";
  } catch (error) {
    await tx.query("ROLLBACK");
    return error.code;
  } finally {
    tx.release();
  }
}

// A lease that is lost does not interrupt the function: only its writes matter here.
const options = { wait: "30s", onLost: "return", ...(fence && { fence }) };
console.log(await locks.withLock("stock:hat", options, buy));
await locks.close();
await pool.end();
process.exit();

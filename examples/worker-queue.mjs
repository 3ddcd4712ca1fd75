// Workers that share a queue in a table of PostgreSQL: each takes the oldest job that is free. A job
// and its effects are one transaction, so a worker that dies loses nothing and does nothing twice.
// It needs two tables:
//   CREATE TABLE jobs (id integer PRIMARY KEY, state text NOT NULL DEFAULT 'new');
//   CREATE TABLE invoices (job integer, worker integer);
//   CREATE INDEX ON jobs (id) WHERE state = 'new';
//   INSERT INTO jobs SELECT generate_series(1, 200);
// Run it several times at once: POSTGRES_URL=postgres://… node examples/worker-queue.mjs
import { lockRow } from "holdfast/postgres";
import pg from "pg";

const pool = new pg.Pool({ connectionString: process.env.POSTGRES_URL });

/** Works on one job; resolves to false if none is free. */
async function workOnce(work) {
  const tx = await pool.connect();
  try {
    await tx.query("BEGIN");
    // Jobs that other workers have locked are passed over: nobody waits for anybody.
    const job = await lockRow(tx, "jobs", { state: "new" }, { skipLocked: true, orderBy: "id" });
    if (job !== null) {
      await work(job, tx);
      await tx.query("UPDATE jobs SET state = 'done' WHERE id = $1", [job.id]);
    }
    await tx.query("COMMIT");
    tx.release();
    return job !== null;
  } catch (error) {
    // Closes the connection: PostgreSQL rolls back, and the job is free for another worker.
    tx.release(true);
    throw error;
  }
}

async function sendInvoice(job, tx) {
  await tx.query("INSERT INTO invoices (job, worker) VALUES ($1, $2)", [job.id, process.pid]);
  console.log(`worker ${process.pid}: invoice for job ${job.id}`);
}

while (await workOnce(sendInvoice));
await pool.end();

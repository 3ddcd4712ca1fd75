// Replaces a file behind a fence without end. Usage: node replacer.mjs FOLDER TOKEN BYTES
import { openFileFence } from "holdfast/fence/file";

const [folder, token, bytes] = process.argv.slice(2);
const fence = await openFileFence(folder);
const lease = { token: BigInt(token), floor: BigInt(token) };
for (let i = 0; ; i++) {
  const letter = String.fromCharCode(97 + (i % 26));
  await fence.replace("report", lease, letter.repeat(Number(bytes)));
}

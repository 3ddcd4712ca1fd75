import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";

const NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];

function openssl(folder: string, ...args: readonly string[]): void {
  execFileSync("openssl", args, { cwd: folder, stdio: "ignore" });
}

/** Writes `NAME.pem` and `NAME.key` of an authority. */
export function makeAuthority(folder: string, name: string): void {
  const files = ["-keyout", `${name}.key`, "-out", `${name}.pem`];
  openssl(folder, "req", "-x509", ...NEW_KEY, "-subj", `/CN=${name}`, "-days", "2", ...files);
}

/** Writes `NAME.pem` and `NAME.key`, signed by the authority `ca`, for these alternative names. */
export function makeCertificate(folder: string, name: string, of: string): void {
  const request = ["-keyout", `${name}.key`, "-out", `${name}.csr`];
  openssl(folder, "req", ...NEW_KEY, "-subj", `/CN=${name}`, ...request);
  writeFileSync(join(folder, `${name}.ext`), `subjectAltName=${of}`);
  const signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"];
  const files = ["-extfile", `${name}.ext`, "-out", `${name}.pem`];
  openssl(folder, "x509", "-req", "-in", `${name}.csr`, ...signed, ...files);
}

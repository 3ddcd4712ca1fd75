/** Explains a failure to connect by the system's error code in its text; null if there is none. */
export function explainNetworkFailure(text: string): string | null {
  if (text.includes("ECONNREFUSED")) {
    return "nothing listens there (ECONNREFUSED): check the address, and that the server runs";
  }
  const code = /ENOTFOUND|EAI_AGAIN/.exec(text)?.[0];
  return code === undefined ? null : `the host name is not known (${code}): check the address`;
}

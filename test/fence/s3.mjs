// A server like an object storage, as much of it as a fence needs: PUT and GET of an object, its metadata in
// headers, If-Match and If-None-Match. And the place of a fence on it.
import { createServer } from "node:http";

const HIGHEST = "x-amz-meta-fence";

/** Starts the server; resolves to its URL and its objects. */
export async function startObjects() {
  const objects = new Map();
  let versions = 0;
  const server = createServer(async (request, response) => {
    const found = objects.get(request.url);
    if (request.method === "GET") {
      if (found === undefined) return response.writeHead(404).end();
      return response
        .writeHead(200, { etag: found.etag, [HIGHEST]: found.highest })
        .end(found.body);
    }
    let body = "";
    for await (const part of request) body += part;
    const now = objects.get(request.url);
    const { "if-match": match, "if-none-match": none } = request.headers;
    if ((none === "*" && now !== undefined) || (match !== undefined && match !== now?.etag))
      return response.writeHead(412).end();
    const etag = `"${++versions}"`;
    objects.set(request.url, { body, etag, highest: request.headers[HIGHEST] ?? "" });
    response.writeHead(200, { etag }).end();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}`;
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url, objects, close };
}

/** The objects of such a server as places: the number is in the metadata, the version is the ETag. */
export const s3Place = (url) => ({
  async read(resource) {
    const reply = await fetch(`${url}/${encodeURIComponent(resource)}`);
    if (reply.status === 404) return { value: null, highest: null, version: null };
    const highest = reply.headers.get(HIGHEST);
    return {
      value: await reply.text(),
      highest: highest ? BigInt(highest) : null,
      version: reply.headers.get("etag"),
    };
  },
  async write(resource, { value, highest }, version) {
    const reply = await fetch(`${url}/${encodeURIComponent(resource)}`, {
      method: "PUT",
      body: value ?? "",
      headers: {
        ...(version === null ? { "if-none-match": "*" } : { "if-match": version }),
        ...(highest === null ? {} : { [HIGHEST]: String(highest) }),
      },
    });
    if (reply.status === 412) return false;
    if (!reply.ok) throw new Error(`the server answers ${reply.status}`);
    return true;
  },
});

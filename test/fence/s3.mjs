// A server like an object storage, as much of it as a fence needs: PUT and GET of an object, If-Match and
// If-None-Match, and sometimes 409 to a conditional PUT, as of S3. And the place of a fence on it.
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { httpDocument } from "holdfast/lockfree";

/** Starts the server; resolves to its URL and its objects. */
export async function startObjects() {
  const objects = new Map();
  let puts = 0;
  const server = createServer(async (request, response) => {
    const found = objects.get(request.url);
    if (request.method === "GET") {
      if (found === undefined) return response.writeHead(404).end();
      return response.writeHead(200, { etag: found.etag }).end(found.body);
    }
    let body = "";
    for await (const part of request) body += part;
    // Another conditional PUT was under way: nothing was written.
    if (++puts % 5 === 0) return response.writeHead(409).end();
    const now = objects.get(request.url);
    const { "if-match": match, "if-none-match": none } = request.headers;
    if ((none === "*" && now !== undefined) || (match !== undefined && match !== now?.etag))
      return response.writeHead(412).end();
    // As on S3: of the content alone, whatever the metadata are.
    const etag = `"${createHash("md5").update(body).digest("hex")}"`;
    objects.set(request.url, { body, etag });
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

/** The objects of such a server as places: value and number are the content, the version is its ETag. */
export const s3Place = (url) => {
  const objectOf = (resource) => httpDocument(`${url}/${encodeURIComponent(resource)}`);
  return {
    async read(resource) {
      const { value: text, version } = await objectOf(resource).read();
      const { value = null, highest = null } = text === null ? {} : JSON.parse(text);
      return { value, highest: highest === null ? null : BigInt(highest), version };
    },
    async write(resource, { value, highest }, version) {
      const text = JSON.stringify({ value, highest: highest === null ? null : String(highest) });
      return (await objectOf(resource).write(text, version)) !== false;
    },
  };
};

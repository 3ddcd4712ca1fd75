import { serve } from "../support/http-server.js";

/** A service with one document, which obeys `If-Match` and `If-None-Match: *`. */
export async function startEtagServer(): Promise<{
  readonly url: string;
  readonly address: string;
  readonly port: number;
  /** Null: there is none. */
  text(): string | null;
}> {
  let document: { text: string; tag: number } | null = null;
  const url = await serve(async (request, response) => {
    if (request.url === "/weak") return void response.setHeader("etag", 'W/"1"').end("1");
    if (request.url === "/moved") return void response.writeHead(303, { location: "/weak" }).end();
    const status = /^\/status\/(\d+)$/.exec(request.url ?? "")?.[1];
    if (status !== undefined) return void response.writeHead(Number(status)).end();
    if (request.method === "GET") {
      if (document === null) return void response.writeHead(404).end("nothing");
      return void response.setHeader("etag", `"${document.tag}"`).end(document.text);
    }
    let text = "";
    for await (const chunk of request) text += chunk;
    const { "if-match": tag, "if-none-match": none } = request.headers;
    const fits = document === null ? none === "*" : tag === `"${document.tag}"`;
    if (!fits) return void response.writeHead(412).end();
    document = { text, tag: (document?.tag ?? 0) + 1 };
    response.writeHead(204).end();
  });
  return {
    url,
    address: "127.0.0.1",
    port: Number(new URL(url).port),
    text: () => document?.text ?? null,
  };
}

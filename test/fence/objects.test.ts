import { expect, onTestFinished, test } from "vitest";
import { importBlock } from "../support/docs.js";
// @ts-expect-error: a program for Node, without types
import { startObjects } from "./s3.mjs";

test("the code of docs/fences.md for objects runs on a server that obeys If-Match as S3 does", async () => {
  const { url, objects, close } = await startObjects();
  onTestFinished(close);
  const inDocs = "http://127.0.0.1:9000/reports";
  await importBlock("docs/fences.md", "test/fence/objects.test.ts", (code) => {
    expect(code).toContain(inDocs);
    return code.replace(inDocs, url);
  });
  expect(JSON.parse(objects.get("/report").body)).toEqual({
    value: "one more line\n",
    highest: expect.stringMatching(/^\d+$/),
  });
});

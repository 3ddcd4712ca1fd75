import { type Answers, choicesOf, QUESTIONS, type QuestionId } from "../../src/advise/questions.js";

const WORK = ["1s", "20s"];
const STORES = [
  ...choicesOf("stores").map((one) => [one]),
  ["redis", "etcd"],
  ["redis", "redlock"],
];

/** Every combination of answers, with two lengths of work and a few sets of stores. */
export function* allAnswers(): Generator<Answers> {
  yield* combine(Object.keys(QUESTIONS) as QuestionId[], {});
}

function* combine([id, ...rest]: readonly QuestionId[], answers: object): Generator<Answers> {
  if (id === undefined) {
    yield answers;
    return;
  }
  const values =
    id === "work" ? WORK : id === "stores" ? STORES : id === "network" ? ["1s"] : choicesOf(id);
  for (const value of values) yield* combine(rest, { ...answers, [id]: value });
}

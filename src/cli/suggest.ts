/** A word with more mistakes is not taken for another. */
const MOST_MISTAKES = 2;

/** `; did you mean …?` for a mistyped word; empty if it resembles none of the words. */
export function suggest(typed: string, words: readonly string[]): string {
  const near = words
    .map((word) => ({ word, mistakes: countMistakes(typed, word) }))
    .filter(({ word, mistakes }) => mistakes <= MOST_MISTAKES && mistakes < word.length / 2)
    .sort((a, b) => a.mistakes - b.mistakes);
  return near.length === 0 ? "" : `; did you mean ${near[0]!.word}?`;
}

/** The letters to insert, delete, replace or swap with the next to turn one word into the other. */
function countMistakes(typed: string, word: string): number {
  const rows = [Array.from({ length: word.length + 1 }, (_, i) => i)];
  for (let i = 1; i <= typed.length; i++) {
    const above = rows[i - 1]!;
    const row = [i];
    for (let j = 1; j <= word.length; j++) {
      const isSame = typed[i - 1] === word[j - 1];
      const isSwapped = typed[i - 1] === word[j - 2] && typed[i - 2] === word[j - 1];
      row.push(
        Math.min(
          above[j - 1]! + (isSame ? 0 : 1),
          above[j]! + 1,
          row[j - 1]! + 1,
          i > 1 && j > 1 && isSwapped ? rows[i - 2]![j - 2]! + 1 : Number.POSITIVE_INFINITY,
        ),
      );
    }
    rows.push(row);
  }
  return rows[typed.length]![word.length]!;
}

import type { Fenced } from "../../../fence/fence.js";
import type { Cells } from "./register.js";

/** The numbers of a resource, kept together on a server with compare-and-set. */
export interface Cell {
  readonly value: number;
  readonly unfenced: number;
  readonly step: number;
}

export const EMPTY_CELL: Cell = { value: 0, unfenced: 0, step: 0 };

interface ComparedServer {
  read(resource: string): Promise<Cell>;
  /** Changes the cell once; resolves to the cell from before. Without a lease, nothing is guarded. */
  change(resource: string, lease: Fenced | null, next: (cell: Cell) => Cell): Promise<Cell>;
  close(): unknown;
}

export function comparedCells({ read, change, close }: ComparedServer): Cells {
  const stepped = async (
    resource: string,
    lease: Fenced | null,
    value: number | null,
  ): Promise<number> => {
    const before = await change(resource, lease, (cell) => ({
      ...cell,
      value: value ?? cell.value,
      step: cell.step + 1,
    }));
    return before.step + 1;
  };
  return {
    access: stepped,
    count: (resource) => stepped(resource, null, null),
    read,
    swap: async (resource, unfenced) =>
      (await change(resource, null, (cell) => ({ ...cell, unfenced }))).unfenced,
    close,
  };
}

import { UnsupportedError } from "../../core/errors.js";
import { show } from "../../core/validate.js";

/** Every stored value begins with its format: `1:NUMBER`. */
export const STORED_FORMAT = "1";

/** The place of a stored value, for errors. */
interface StoredPlace {
  /** `the etcd key "x"`. */
  readonly where: string;
  /** The option that moves the fence to another place. */
  readonly option: "prefix" | "root";
  /** The form of the number. */
  readonly digits: RegExp;
}

/** Reads `1:NUMBER`. Throws `UnsupportedError` for a value of a later format, or of another program. */
export function parseStored(value: string, { where, option, digits }: StoredPlace): bigint {
  const [, format, number] = /^(\d+):(.*)$/s.exec(value) ?? [];
  if (format === STORED_FORMAT && digits.test(number!)) return BigInt(number!);
  const isOurs = format === undefined || format === STORED_FORMAT;
  throw new UnsupportedError(
    isOurs
      ? `${where} holds ${show(value)}, which is no fence: give the fence a ${option} of its own`
      : `${where} has format ${show(format)}, and this version of Holdfast knows ${STORED_FORMAT}: use the version that wrote it`,
  );
}

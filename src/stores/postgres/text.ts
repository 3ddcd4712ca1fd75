/** PostgreSQL's text has no NUL, and no halves of surrogate pairs. */
export const storable = (text: string): string => text.toWellFormed().replaceAll("\0", "\ufffd");

// What JSON can hold of a type: an enum's words are plain strings there.
export type Json<T> = T extends string
  ? `${T}`
  : T extends number | boolean | null | undefined
    ? T
    : T extends (infer E)[]
      ? Json<E>[]
      : unknown extends T
        ? unknown
        : { [K in keyof T]: Json<T[K]> }

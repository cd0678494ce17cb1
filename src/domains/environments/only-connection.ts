/**
 * The only connection of a type among those of an environment. `problem` says why there is none to
 * choose, with the remedy.
 */
export const onlyConnection = (
  connections: readonly { id: string; type: string }[],
  type: string,
): { id: string; problem?: undefined } | { id?: undefined; count: number; problem: string } => {
  const choices = connections.filter((connection) => connection.type === type)
  const [first] = choices
  if (first !== undefined && choices.length === 1) return { id: first.id }
  const problem =
    first === undefined
      ? `has no connection of type ${type}; save one and name it`
      : `has ${String(choices.length)} connections of type ${type}; name one of ` +
        choices.map(({ id }) => JSON.stringify(id)).join(', ')
  return { count: choices.length, problem }
}

/** Does no work; returns its start and end. */
export async function noop(_task: string): Promise<[number, number]> {
  const now = Date.now() / 1_000
  return [now, now]
}

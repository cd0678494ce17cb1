/** The known state of one connection of an environment. */
export interface Standing {
  /** The result of its newest check; undefined before the first. */
  status?: string | undefined
  discovering: boolean
  discovered: boolean
}

/**
 * The status of an environment: defined → connecting → connected → discovering → ready; degraded
 * when some connections fail, unreachable when all checked connections fail. The author's status
 * stays until the first check has a result. Only `defined` becomes `connecting` while the result is
 * awaited.
 */
export const environmentStatus = (
  current: string,
  connections: readonly Standing[],
  checking: boolean,
): string => {
  const checked = connections.filter(({ status }) => status !== undefined)
  if (checked.length === 0)
    return checking && (current === 'defined' || current === '') ? 'connecting' : current
  const failed = checked.filter(({ status }) => status !== 'online').length
  if (failed === checked.length) return 'unreachable'
  if (failed > 0) return 'degraded'
  if (connections.some(({ discovering }) => discovering)) return 'discovering'
  return connections.some(({ discovered }) => discovered) ? 'ready' : 'connected'
}

/**
 * Seconds between checks, in units of the first pause, by the number of earlier successes: 1
 * minute, 2 after 5, 5 after 15, 10 after 30.
 */
export const pauseAfter = (successes: number, first: number): number =>
  first * (successes >= 30 ? 10 : successes >= 15 ? 5 : successes >= 5 ? 2 : 1)

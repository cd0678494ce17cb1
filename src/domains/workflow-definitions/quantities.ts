import { mostCores } from '../../ranges.ts'

/** Factors of the memory suffixes. Older documents use the decimal ones. */
const factors: Record<string, number> = {
  '': 1,
  Ki: 2 ** 10,
  Mi: 2 ** 20,
  Gi: 2 ** 30,
  Ti: 2 ** 40,
  K: 1e3,
  M: 1e6,
  G: 1e9,
}

export const defaultCpu = 0.1
export const defaultMemoryBytes = 16 * 2 ** 20

export interface Quantity {
  value: number
  /** Written in a form that only older documents use (a bare number of cores, a decimal suffix). */
  legacy: boolean
}

/**
 * Cores of `cpuLimit`: `1`, `0.5` or `250m`, at least a thousandth of a core.
 * @returns the problem as text for an invalid limit
 */
export function parseCpu(limit: string | number): Quantity | string {
  const match = /^(\d{1,15}(?:\.\d{1,20})?)(m?)$/.exec(typeof limit === 'number' ? '' : limit.trim())
  const value =
    typeof limit === 'number'
      ? limit
      : match === null
        ? Number.NaN
        : Number(match[1]) / (match[2] === 'm' ? 1000 : 1)
  if (!Number.isFinite(value)) return 'must be a number of cores such as "1", "0.5" or "250m"'
  if (value < 0.001 || value > mostCores) return `must lie between 1m and ${mostCores} cores`
  return { value, legacy: typeof limit === 'number' }
}

/**
 * Bytes of `memoryLimit`: an integer with no suffix, Ki, Mi, Gi or Ti.
 * @returns the problem as text for an invalid limit
 */
export function parseMemory(limit: string): Quantity | string {
  const match = /^(\d{1,16})([KMGT]i|[KMG]|)$/.exec(limit.trim())
  if (match === null) return 'must be a whole number of bytes, or one with Ki, Mi, Gi or Ti, such as "256Mi"'
  const suffix = match[2] ?? ''
  const value = Number(match[1]) * (factors[suffix] ?? 1)
  if (!Number.isSafeInteger(value)) return 'must be at most 2^53 - 1 bytes'
  return { value, legacy: suffix.length === 1 }
}

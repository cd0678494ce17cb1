/** A duration as text: 12 s, 4 min, 3 h, 2 days. */
const spell = (seconds: number): string => {
  if (seconds < 60) return `${String(Math.floor(seconds))} s`
  if (seconds < 3_600) return `${String(Math.floor(seconds / 60))} min`
  if (seconds < 172_800) return `${String(Math.floor(seconds / 3_600))} h`
  return `${String(Math.floor(seconds / 86_400))} days`
}

/**
 * The reason for which tasks wait, with its duration: "waits for ssh/far: connection refused, since
 * 4 min". Times in seconds since the epoch.
 */
export const waitText = ({ reason, since }: { reason: string; since?: number }, now: number): string =>
  reason.replace(/^waiting for /, 'waits for ') +
  (since === undefined ? '' : `, since ${spell(Math.max(0, now - since))}`)

/** How an attempt ended, for metrics and log. */
export interface EndedAttempt {
  activityId: string
  attempt: number
  status: string
  failureClass: string | null
  exitCode: number | null
  reason: string | null
}

/** A site that does not answer. */
export interface Silence {
  /** Seconds since the epoch. */
  since: number
  /** The message of the last failure. */
  reason: string
  /** A person has to log in there. */
  needsLogin: boolean
}

/** The reports of a run's site to metrics and log; no decision reads them. */
export interface SiteReports {
  /** Another process held the site and had not left it. */
  leaseTaken(from: string): void
  committed(seconds: number): void
  attemptEnded(attempt: EndedAttempt): void
  transferred(strategy: string, bytes: number): void
  /** How long an activity waited, and the cause. */
  waited(cause: string, seconds: number): void
  /** The site does not answer; undefined: it does, or it has no query. Repeated with each look. */
  silent(silence: Silence | undefined): void
  /** The executor has left the site; its state is unknown from now on. */
  left(): void
}

/**
 * The summary of a record on Temporal's page. It is an argument of the workflow's start, because
 * continue-as-new drops the texts of the page.
 */
export interface Headline {
  /** One line of plain text, e.g. "mosaic on lab, real, 78 activities, promised 95 s". */
  line: string
}

/** A reason for which tasks of a site wait. */
export interface SiteWait {
  /**
   * The kind that the executor gives: `cores`, `lane`, `site`, `login`, `data`, `retry` or `queue`;
   * `other` comes from an earlier version.
   */
  kind: string
  site: string
  /** The reason in the record's text. */
  reason: string
  tasks: number
}

/** The facts that a working site reports now and then. */
export interface SiteStatus {
  paused: boolean
  /** Most tasks first; the first few. */
  waits: SiteWait[]
  /** The newest attempt that failed. */
  failure?: { activity: string; reason: string }
}

/** Texts in details are cut at this many characters: the server takes 20,000 bytes. */
const mostCharacters = 500

/** Shortens a text to one line. */
const short = (text: string): string => {
  const line = text.replace(/\s+/gu, ' ').trim()
  return line.length > mostCharacters ? `${line.slice(0, mostCharacters).toWellFormed()}…` : line
}

/**
 * Plain text for details on Temporal's page. The page reads them as Markdown and inserts their HTML
 * unchanged, while names, reasons and standard error hold any text. The escaped marks are those
 * whose backslash the page removes again.
 */
export const plain = (text: string): string => short(text).replace(/[\\`*_{}[\]()#+\-.!|<>~&:^$]/gu, '\\$&')

/**
 * A line for summaries. The page shows it as plain text in one place and as Markdown in another, so
 * marks of HTML and of links are replaced.
 */
export const harmless = (text: string): string =>
  short(text).replace(/[<>[\]&\\]/gu, (mark) => ({ '<': '‹', '>': '›', '[': '(', ']': ')' })[mark] ?? ' ')

/** Lines as one text of Markdown: a paragraph each, points as a list. */
const lines = (headline: Headline | undefined, texts: readonly string[]): string =>
  [...(headline === undefined ? [] : [plain(headline.line), '']), ...texts].join('\n')

/** Details of a workflow that reports one sentence. */
export const sentence = (headline: Headline | undefined, text: string): string =>
  lines(headline, [plain(text)])

/**
 * Details of a run: its line, its progress, its sites, the reasons of waiting, its newest failure.
 */
export const runDetails = (
  headline: Headline | undefined,
  run: {
    phase: string
    completed: number
    total: number
    sites: readonly { site: string; state: string; running: number }[]
  },
  sites: readonly SiteStatus[],
): string => {
  const points = run.sites.map(
    ({ site, state, running }) => `- ${plain(`${site}: ${state}, ${String(running)} running`)}`,
  )
  const waits = sites
    .flatMap(({ waits: here }) => here)
    .map(({ reason, tasks }) => `- ${plain(`${String(tasks)} × ${reason}`)}`)
  const failure = sites.findLast((one) => one.failure !== undefined)?.failure
  return lines(headline, [
    plain(`${run.phase}: ${String(run.completed)} of ${String(run.total)} activities completed`),
    ...(points.length === 0 ? [] : ['', ...points]),
    ...(waits.length === 0 ? [] : ['', 'Waiting:', '', ...waits]),
    ...(failure === undefined ? [] : ['', plain(`Last failure: ${failure.activity}: ${failure.reason}`)]),
  ])
}

/** The longest value of a search attribute that every database accepts. */
const mostOfAttribute = 255

/** A text as a search attribute. */
export const attribute = (text: string): string => text.slice(0, mostOfAttribute).toWellFormed()

/** Kind and site of the reason for which most tasks wait; undefined where none waits. */
export const waitsFor = (sites: readonly SiteStatus[]): string | undefined => {
  const most = sites
    .flatMap(({ waits }) => waits)
    .reduce<SiteWait | undefined>(
      (best, one) => (best === undefined || one.tasks > best.tasks ? one : best),
      undefined,
    )
  return most === undefined ? undefined : attribute(`${most.kind} ${most.site}`)
}

/** A run's state as a value to search for. */
export const runStateOf = (sites: readonly SiteStatus[], running: number): 'running' | 'paused' | 'waiting' =>
  sites.some(({ paused }) => paused)
    ? 'paused'
    : running === 0 && waitsFor(sites) !== undefined
      ? 'waiting'
      : 'running'

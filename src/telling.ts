/** What a workflow says of its record on Temporal's page; given at its start, since continue-as-new drops what the page kept. */
export interface Told {
  /** One line of plain text, e.g. "mosaic on lab, real, 78 activities, promised 95 s". */
  line: string
}

/** What tasks of a site wait for. */
export interface Wait {
  /** `login`, `site`, `lane`, `cores`, `queue`, `retry` or `other`. */
  kind: string
  site: string
  /** As the record has it. */
  reason: string
  tasks: number
}

/** What a working site says now and then. */
export interface SiteNews {
  paused: boolean
  /** Most tasks first; the first few. */
  waits: Wait[]
  /** The newest attempt that failed. */
  failure?: { activity: string; reason: string }
}

/** Texts in details are cut at this many characters: the server takes 20,000 bytes. */
const mostCharacters = 500

/** One line, cut. */
const short = (text: string): string => {
  const line = text.replace(/\s+/gu, ' ').trim()
  return line.length > mostCharacters ? `${line.slice(0, mostCharacters).toWellFormed()}…` : line
}

/**
 * Plain text for details on Temporal's page, which reads them as Markdown and puts their HTML into the page as it is:
 * names, reasons and standard error hold anything. These marks are those whose backslash the page takes away again.
 */
export const plain = (text: string): string => short(text).replace(/[\\`*_{}[\]()#+\-.!|<>~&:^$]/gu, '\\$&')

/** A line for summaries, which the page shows as plain text in one place and as Markdown in another: without marks of HTML and of links. */
export const harmless = (text: string): string =>
  short(text).replace(/[<>[\]&\\]/gu, (mark) => ({ '<': '‹', '>': '›', '[': '(', ']': ')' })[mark] ?? ' ')

/** Lines as one text of Markdown: a paragraph each, points as a list. */
const lines = (told: Told | undefined, texts: readonly string[]): string =>
  [...(told === undefined ? [] : [plain(told.line), '']), ...texts].join('\n')

/** Details of a workflow that says one sentence. */
export const sentence = (told: Told | undefined, text: string): string => lines(told, [plain(text)])

/** Details of a run: its line, how far it is, its sites, what its tasks wait for, its newest failure. */
export const runDetails = (
  told: Told | undefined,
  run: { phase: string; completed: number; total: number; sites: readonly { site: string; state: string; running: number }[] },
  news: readonly SiteNews[],
): string => {
  const points = run.sites.map(({ site, state, running }) => `- ${plain(`${site}: ${state}, ${String(running)} running`)}`)
  const waits = news.flatMap(({ waits: here }) => here).map(({ reason, tasks }) => `- ${plain(`${String(tasks)} × ${reason}`)}`)
  const failure = news.findLast((one) => one.failure !== undefined)?.failure
  return lines(told, [
    plain(`${run.phase}: ${String(run.completed)} of ${String(run.total)} activities completed`),
    ...(points.length === 0 ? [] : ['', ...points]),
    ...(waits.length === 0 ? [] : ['', 'Waiting:', '', ...waits]),
    ...(failure === undefined ? [] : ['', plain(`Last failure: ${failure.activity}: ${failure.reason}`)]),
  ])
}

/** Longest value of a search attribute that every database takes. */
const mostOfAttribute = 255

/** A text as a search attribute. */
export const attribute = (text: string): string => text.slice(0, mostOfAttribute).toWellFormed()

/** Kind and site of what most tasks wait for; undefined: nothing waits. */
export const waitsFor = (news: readonly SiteNews[]): string | undefined => {
  const most = news
    .flatMap(({ waits }) => waits)
    .reduce<Wait | undefined>((best, one) => (best === undefined || one.tasks > best.tasks ? one : best), undefined)
  return most === undefined ? undefined : attribute(`${most.kind} ${most.site}`)
}

/** A run's state as operators search for it. */
export const runStateOf = (news: readonly SiteNews[], running: number): 'running' | 'paused' | 'waiting' =>
  news.some(({ paused }) => paused) ? 'paused' : running === 0 && waitsFor(news) !== undefined ? 'waiting' : 'running'

import type { SiteShell } from '../../../shell/site-shell.ts'
import { asDriverError } from '../contract/results.ts'
import { openRemoteTasks, type RemoteTasks } from '../remote/tasks.ts'
import { openSubmissions, type Submissions } from './submissions.ts'

/**
 * The files of a site whose tasks a batch scheduler starts: the tasks' own records, and the
 * driver's records of arrays.
 */
export interface BatchSite {
  /** Used in messages and manifests. */
  runtime: string
  /** Broken links are `DriverError`s of the class that names the remedy. */
  shell: SiteShell
  tasks: RemoteTasks
  submissions: Submissions
  /** Absolute at the site. */
  root: () => Promise<string>
}

const withDriverErrors = (shell: SiteShell): SiteShell => ({
  run: (script, options) =>
    shell.run(script, options).catch((error: unknown) => {
      throw asDriverError(error)
    }),
  open: (script) => shell.open(script),
  close: () => shell.close(),
})

/**
 * @param options.root absolute at the site, on a file system that its compute nodes share; absent or
 *   blank: `$HOME/.orrery`
 */
export const openBatchSite = (options: {
  shell: SiteShell
  runtime: string
  taskVariable: string
  root?: string
  inImage?: boolean
  outputPatienceSeconds?: number
}): BatchSite => {
  const shell = withDriverErrors(options.shell)
  const tasks = openRemoteTasks({ ...options, elsewhere: true })
  const root = (): Promise<string> => tasks.root()
  return { runtime: options.runtime, shell, tasks, submissions: openSubmissions(shell, root), root }
}

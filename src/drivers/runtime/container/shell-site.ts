import type { SiteShell } from '../../../shell/site-shell.ts'
import type { OpenedDriver } from '../contract/kind.ts'
import type { RootedDriver } from '../contract/rooted.ts'
import { withContainers } from './driver.ts'

/**
 * A driver of a site that is reached through a shell, whose tasks may run in containers there. The
 * shell stays its owner's.
 */
export const inContainers = (
  driver: RootedDriver,
  {
    shell,
    taskVariable,
    endsDescendants,
  }: { shell: SiteShell; taskVariable: string; endsDescendants: boolean },
): OpenedDriver => {
  const contained = withContainers(driver, {
    shell,
    root: driver.root,
    taskVariable,
    engine: 'auto',
    endsDescendants,
  })
  return { driver: { ...contained, root: driver.root }, shell, close: () => driver.close() }
}

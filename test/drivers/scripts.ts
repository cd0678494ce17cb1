import { quote } from '../../src/shell/quote.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'

/** The shell with other scripts. */
export const withScripts = (shell: SiteShell, changed: (script: string) => string): SiteShell => ({
  run: (script, options) => shell.run(changed(script), options),
  open: (script) => shell.open(changed(script)),
  close: () => shell.close(),
})

/** The script with the rights of an account: root may read and write everything. */
export const asOrdinary = (script: string): string =>
  process.getuid?.() === 0
    ? `exec setpriv --bounding-set=-dac_override,-dac_read_search /bin/sh -c ${quote(script)}`
    : script

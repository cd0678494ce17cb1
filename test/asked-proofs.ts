import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { proofGroups } from './proof-groups.ts'

// node test/asked-proofs.ts BASE: prints the groups of proofs that the change since the commit BASE
// asks for, by its paths.

const base = process.argv[2]
if (base === undefined)
  throw new Error('the commit before the change is missing: node test/asked-proofs.ts BASE')
const changed = execFileSync('git', ['diff', '--name-only', base, 'HEAD'], {
  cwd: join(import.meta.dirname, '..'),
  encoding: 'utf8',
}).split('\n')
const asked = Object.entries(proofGroups)
  .filter(([, { askedBy, files }]) =>
    changed.some(
      (path) =>
        askedBy.some((begin) => path.startsWith(begin)) ||
        files.some((stem) => path === `test/${stem}.proof.test.ts`),
    ),
  )
  .map(([name]) => name)
process.stdout.write(
  asked.length === 0
    ? 'the change asks for no proofs\n'
    : `the change asks for proofs (they decide nothing here): npm run proof -- ${asked.join(' ')}\n`,
)

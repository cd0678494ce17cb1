import { firstItems } from '../../lists.ts'
import type { Problem } from '../../refusal.ts'
import { algorithmOf } from './algorithms.ts'
import { AlgorithmConfiguration, SessionConfiguration } from './schemas.ts'

/** The limit of warnings listed one by one. One more warning counts the others. */
const listed = 100

/**
 * Every stored key of the two configurations that no algorithm of this version reads, by its path
 * in the session's document.
 */
export const sessionWarnings = (session: {
  algorithms: readonly { id: string; configuration?: Record<string, unknown> | undefined }[]
  configuration?: Record<string, unknown> | undefined
}): Problem[] => {
  const warnings: Problem[] = Object.keys(session.configuration ?? {}).map((key) => ({
    path: `configuration.${key}`,
    message: Object.hasOwn(SessionConfiguration.shape, key)
      ? 'is kept and not read yet: no algorithm of this version models interference'
      : 'is kept and not read: the API does not know this key',
  }))
  session.algorithms.forEach(({ id, configuration = {} }, at) => {
    for (const key of Object.keys(configuration)) {
      if (algorithmOf(id)?.descriptor.defaults?.[key] !== undefined) continue
      const message = Object.hasOwn(AlgorithmConfiguration.shape, key)
        ? `is kept and not read: the algorithm ${id} has no such option`
        : 'is kept and not read: the API does not know this key'
      warnings.push({ path: `algorithms.${at}.configuration.${key}`, message })
    }
  })
  return firstItems(warnings, listed, (more) => ({
    path: '',
    message: `${more} more keys are kept and not read`,
  }))
}

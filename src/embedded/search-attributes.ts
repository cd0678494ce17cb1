import type { Connection } from '@temporalio/client'
import { searchAttributeTypes, type TemporalSettings } from './temporal-settings.ts'

const typeAt = (index: number | null | undefined): string =>
  searchAttributeTypes[(index ?? 0) - 1] ?? 'missing'

/**
 * Adds the search attributes that a namespace lacks: a workflow that sets an unknown one stands
 * still. The server accepts a changed type and keeps the old one, so types are read back.
 * @returns the attributes with a wrong type, each as a clause
 * @throws an error of gRPC when the server does not answer, or refuses additions
 */
export const ensureSearchAttributes = async (
  { operatorService }: Pick<Connection, 'operatorService'>,
  namespace: string,
  attributes: TemporalSettings['searchAttributes'],
): Promise<string[]> => {
  const { customAttributes: known } = await operatorService.listSearchAttributes({ namespace })
  const lacking = Object.entries(attributes).filter(([name]) => known?.[name] === undefined)
  if (lacking.length > 0)
    await operatorService.addSearchAttributes({
      namespace,
      searchAttributes: Object.fromEntries(
        lacking.map(([name, type]) => [name, searchAttributeTypes.indexOf(type) + 1]),
      ),
    })
  return Object.entries(attributes)
    .filter(([name, type]) => known?.[name] !== undefined && typeAt(known[name]) !== type)
    .map(([name, type]) => `${name} is ${typeAt(known?.[name])} instead of ${type}`)
}

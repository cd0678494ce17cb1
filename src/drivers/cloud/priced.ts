import { CloudError, type CloudOffers, type Prices } from './contract.ts'

/**
 * The offers of a provider with its prices. A provider that refuses to give them is a warning of
 * the offers; one that gives no answer is an error, so that earlier prices stay.
 * @throws CloudError
 */
export const priced = async (
  provider: string,
  offers: CloudOffers,
  ask: () => Promise<Prices>,
): Promise<CloudOffers> => {
  const without = 'a target without pricePerHour of its own counts 0'
  let prices: Prices
  try {
    prices = await ask()
  } catch (error) {
    if (!(error instanceof CloudError) || error.passes) throw error
    const warning = `${provider} does not tell its prices (${error.message}); ${without}`
    return { ...offers, warnings: [...offers.warnings, warning] }
  }
  const { currency: priceCurrency, source: priceSource, perHour, perGiBMonth } = prices
  const origin = { priceCurrency, priceSource }
  const free = offers.machines.filter(({ providerTypeId }) => !perHour.has(providerTypeId))
  const named = free.slice(0, 5).map(({ providerTypeId }) => providerTypeId)
  return {
    ...offers,
    machines: offers.machines.map((one) => {
      const pricePerHour = perHour.get(one.providerTypeId)
      return pricePerHour === undefined
        ? one
        : { ...one, pricePerHour, pricePerMinute: pricePerHour / 60, ...origin }
    }),
    disks: offers.disks.map((one) => {
      const pricePerGiBMonth = perGiBMonth.get(one.providerTypeId)
      return pricePerGiBMonth === undefined ? one : { ...one, pricePerGiBMonth, ...origin }
    }),
    warnings: [
      ...offers.warnings,
      ...(free.length === 0
        ? []
        : [
            `${provider} tells no price of ${String(free.length)} machine types ` +
              `(${named.join(', ')}${free.length > named.length ? ', …' : ''}); ${without}`,
          ]),
    ],
  }
}
